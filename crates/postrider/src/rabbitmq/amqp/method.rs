//! Methods: what is asked and answered, as a class, a number and what belongs to it.

use super::wire::{Unsayable, put_long, put_short};
use super::{content, table};
use crate::broker::Headers;

/// Class and number of a method.
pub(super) type Id = (u16, u16);

pub(super) const START: Id = (10, 10);
pub(super) const START_OK: Id = (10, 11);
pub(super) const SECURE: Id = (10, 20);
pub(super) const TUNE: Id = (10, 30);
pub(super) const TUNE_OK: Id = (10, 31);
pub(super) const OPEN: Id = (10, 40);
pub(super) const OPEN_OK: Id = (10, 41);
pub(super) const CLOSE: Id = (10, 50);
pub(super) const CLOSE_OK: Id = (10, 51);
pub(super) const BLOCKED: Id = (10, 60);
pub(super) const UNBLOCKED: Id = (10, 61);

pub(super) const CHANNEL_OPEN: Id = (20, 10);
pub(super) const CHANNEL_OPEN_OK: Id = (20, 11);
pub(super) const CHANNEL_FLOW: Id = (20, 20);
pub(super) const CHANNEL_FLOW_OK: Id = (20, 21);
pub(super) const CHANNEL_CLOSE: Id = (20, 40);
pub(super) const CHANNEL_CLOSE_OK: Id = (20, 41);

pub(super) const EXCHANGE_DECLARE: Id = (40, 10);
pub(super) const EXCHANGE_DECLARE_OK: Id = (40, 11);
pub(super) const EXCHANGE_DELETE: Id = (40, 20);
pub(super) const EXCHANGE_DELETE_OK: Id = (40, 21);

pub(super) const QUEUE_DECLARE: Id = (50, 10);
pub(super) const QUEUE_DECLARE_OK: Id = (50, 11);
pub(super) const QUEUE_BIND: Id = (50, 20);
pub(super) const QUEUE_BIND_OK: Id = (50, 21);
pub(super) const QUEUE_DELETE: Id = (50, 40);
pub(super) const QUEUE_DELETE_OK: Id = (50, 41);
pub(super) const QUEUE_UNBIND: Id = (50, 50);
pub(super) const QUEUE_UNBIND_OK: Id = (50, 51);

pub(super) const QOS: Id = (content::BASIC, 10);
pub(super) const QOS_OK: Id = (content::BASIC, 11);
pub(super) const CONSUME: Id = (content::BASIC, 20);
pub(super) const CONSUME_OK: Id = (content::BASIC, 21);
pub(super) const CANCEL: Id = (content::BASIC, 30);
pub(super) const CANCEL_OK: Id = (content::BASIC, 31);
pub(super) const PUBLISH: Id = (content::BASIC, 40);
pub(super) const RETURN: Id = (content::BASIC, 50);
pub(super) const DELIVER: Id = (content::BASIC, 60);
pub(super) const ACK: Id = (content::BASIC, 80);
pub(super) const REJECT: Id = (content::BASIC, 90);
pub(super) const NACK: Id = (content::BASIC, 120);

pub(super) const SELECT: Id = (85, 10);
pub(super) const SELECT_OK: Id = (85, 11);

/// A method that is being written.
pub(super) struct Method(Vec<u8>);

impl Method {
    pub(super) fn new(id: Id) -> Self {
        let mut out = Vec::with_capacity(64);
        put_id(&mut out, id);
        Self(out)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn u16(mut self, value: u16) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(super) fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(super) fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Yes and no, from the lowest bit on.
    pub(super) fn bits<const N: usize>(mut self, bits: [bool; N]) -> Self {
        self.0.push(bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit)));
        self
    }

    pub(super) fn short(mut self, what: &'static str, text: &str) -> Result<Self, Unsayable> {
        put_short(&mut self.0, what, text.as_bytes())?;
        Ok(self)
    }

    pub(super) fn long(mut self, bytes: &[u8]) -> Self {
        put_long(&mut self.0, bytes);
        self
    }

    pub(super) fn table(mut self, headers: &Headers) -> Result<Self, Unsayable> {
        table::put(&mut self.0, headers)?;
        Ok(self)
    }
}

/// Writes the method that publishes, mandatory.
pub(super) fn put_publish(out: &mut Vec<u8>, exchange: &[u8], key: &[u8]) -> Result<(), Unsayable> {
    const MANDATORY: u8 = 1;
    put_id(out, PUBLISH);
    out.extend_from_slice(&[0; 2]);
    put_short(out, "the exchange name", exchange)?;
    put_short(out, "the routing key", key)?;
    out.push(MANDATORY);
    Ok(())
}

fn put_id(out: &mut Vec<u8>, (class, number): Id) {
    out.extend_from_slice(&class.to_be_bytes());
    out.extend_from_slice(&number.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_begin_at_the_lowest() {
        assert_eq!(Method::new(ACK).u64(1).bits([true, false]).bytes().last(), Some(&1));
        assert_eq!(Method::new(NACK).u64(1).bits([false, true]).bytes().last(), Some(&2));
    }
}
