//! The primitives: numbers in network order, short texts with one byte of length, long ones with four.

/// What was read is not what it should be, or ends too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a frame that ends too early or holds an unknown type")]
pub(in crate::rabbitmq) struct Malformed;

/// What AMQP has no words for, or RabbitMQ no ears.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::rabbitmq) enum Unsayable {
    /// A text that is longer than a short one may be.
    #[error("{what} has {length} bytes, and AMQP carries at most 255")]
    TooLong {
        /// What the text is.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
    },
    /// RabbitMQ falls over it, and ends the whole connection.
    #[error("a header is an infinite number or none (NaN), which RabbitMQ cannot read; send it as text")]
    NoNumber,
}

/// Reads from the front.
#[derive(Debug, Clone, Copy)]
pub(in crate::rabbitmq) struct Reader<'a>(pub(in crate::rabbitmq) &'a [u8]);

impl<'a> Reader<'a> {
    pub(in crate::rabbitmq) fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    pub(in crate::rabbitmq) fn take(&mut self, bytes: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(in crate::rabbitmq) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_be_bytes(self.fixed()?))
    }

    pub(in crate::rabbitmq) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_be_bytes(self.fixed()?))
    }

    pub(in crate::rabbitmq) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_be_bytes(self.fixed()?))
    }

    pub(in crate::rabbitmq) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_be_bytes(self.fixed()?))
    }

    /// A short text, as bytes: AMQP says UTF-8, and not everybody listens.
    pub(in crate::rabbitmq) fn short(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u8()?;
        self.take(length.into())
    }

    /// A long text, a table or a list: a length and what follows.
    pub(in crate::rabbitmq) fn long(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u32()?;
        self.take(length as usize)
    }
}

/// What a peer wrote as text.
pub(in crate::rabbitmq) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(in crate::rabbitmq) fn put_short(
    out: &mut Vec<u8>,
    what: &'static str,
    text: &[u8],
) -> Result<(), Unsayable> {
    let length = u8::try_from(text.len()).map_err(|_| Unsayable::TooLong { what, length: text.len() })?;
    out.push(length);
    out.extend_from_slice(text);
    Ok(())
}

pub(in crate::rabbitmq) fn put_long(out: &mut Vec<u8>, bytes: &[u8]) {
    sized(out, |out| out.extend_from_slice(bytes));
}

/// Writes a length of four bytes before whatever is written inside.
pub(in crate::rabbitmq) fn sized<T>(out: &mut Vec<u8>, inside: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    let told = inside(out);
    set_length(out, at);
    told
}

/// Writes at this place how many bytes follow it.
fn set_length(out: &mut [u8], at: usize) {
    // Nothing of four gigabytes is ever written: bodies go in frames, and headers have to fit into one.
    let length = u32::try_from(out.len() - at - 4).unwrap_or(u32::MAX);
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}
