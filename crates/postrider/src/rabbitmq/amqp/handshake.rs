//! The beginning of a connection: who we are, what both sides agree on, and which virtual host it is for.

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::Error;
use super::frame::{self, AROUND};
use super::method::{self, Method};
use super::wire::{Reader, text};
use crate::broker::{HeaderValue, Headers};

/// What every AMQP 0-9-1 connection begins with.
const GREETING: &[u8; 8] = b"AMQP\x00\x00\x09\x01";
/// The smallest frame that both sides have to take, and the largest until they have agreed on one.
const SMALLEST_FRAME: u32 = 4096;
/// What we propose, and the largest that we take: RabbitMQ's own default.
const LARGEST_FRAME: u32 = 131_072;
/// What we take when the server sets no limit.
const MOST_CHANNELS: u16 = 2047;

/// Who connects, and to what.
pub(in crate::rabbitmq) struct Login<'a> {
    pub(in crate::rabbitmq) identity: Identity<'a>,
    pub(in crate::rabbitmq) vhost: &'a str,
    /// The name of the connection in RabbitMQ's own pages.
    pub(in crate::rabbitmq) name: &'a str,
    /// Seconds; none at all with 0.
    pub(in crate::rabbitmq) heartbeat: u16,
    /// The largest frame that we want, in bytes; no limit of ours with 0.
    pub(in crate::rabbitmq) frame_max: Option<u32>,
}

/// How we say who we are.
pub(in crate::rabbitmq) enum Identity<'a> {
    /// A name and a password.
    Plain { user: &'a str, password: &'a str },
    /// The certificate of the connection says it.
    External,
}

/// What both sides agreed on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Agreed {
    pub(super) channel_max: u16,
    pub(super) frame_max: usize,
    /// Seconds; none at all with 0.
    pub(super) heartbeat: u16,
}

/// Begins a connection. What has arrived beyond the handshake stays in `arrived`.
pub(super) async fn shake_hands<S>(
    stream: &mut S,
    arrived: &mut BytesMut,
    login: &Login<'_>,
) -> Result<Agreed, Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut hands = Hands { stream, arrived };
    hands.stream.write_all(GREETING).await?;
    hands.stream.flush().await?;
    hands.next(method::START).await?;

    let (mechanism, response) = match &login.identity {
        Identity::Plain { user, password } => ("PLAIN", format!("\0{user}\0{password}")),
        Identity::External => ("EXTERNAL", String::new()),
    };
    let start = Method::new(method::START_OK)
        .table(&about_us(login.name))?
        .short("a mechanism", mechanism)?
        .long(response.as_bytes())
        .short("a locale", "en_US")?;
    hands.say(&start).await?;

    let tune = hands.next(method::TUNE).await?;
    let mut tune = Reader(&tune);
    let (channels, frame, heartbeat) = (tune.u16()?, tune.u32()?, tune.u16()?);
    // To both sides 0 means no limit.
    let wanted = login.frame_max.filter(|most| *most > 0).unwrap_or(LARGEST_FRAME);
    let wanted = wanted.clamp(SMALLEST_FRAME, LARGEST_FRAME);
    let frame_max = if frame == 0 { wanted } else { frame.min(wanted).max(SMALLEST_FRAME) };
    let channel_max = if channels == 0 { MOST_CHANNELS } else { channels.min(MOST_CHANNELS) };
    let heartbeat = match (heartbeat, login.heartbeat) {
        (0, ours) => ours,
        (_, 0) => 0,
        (theirs, ours) => theirs.min(ours),
    };
    let tuned = Method::new(method::TUNE_OK).u16(channel_max).u32(frame_max).u16(heartbeat);
    hands.say(&tuned).await?;
    let open = Method::new(method::OPEN).short("the vhost", login.vhost)?.short("", "")?.bits([false]);
    hands.say(&open).await?;
    hands.next(method::OPEN_OK).await?;
    Ok(Agreed { channel_max, frame_max: frame_max as usize, heartbeat })
}

/// What RabbitMQ shows of us, and what we know to deal with.
fn about_us(name: &str) -> Headers {
    let text = |value: &str| HeaderValue::Text(value.to_owned());
    let able = [
        "authentication_failure_close",
        "basic.nack",
        "connection.blocked",
        "consumer_cancel_notify",
        "publisher_confirms",
    ];
    let able = able.into_iter().map(|what| (what.to_owned(), HeaderValue::Bool(true))).collect();
    Headers::from([
        ("product".to_owned(), text("postrider")),
        ("version".to_owned(), text(env!("CARGO_PKG_VERSION"))),
        ("platform".to_owned(), text("rust")),
        ("connection_name".to_owned(), text(name)),
        ("capabilities".to_owned(), HeaderValue::Table(able)),
    ])
}

struct Hands<'a, S> {
    stream: &'a mut S,
    arrived: &'a mut BytesMut,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Hands<'_, S> {
    async fn say(&mut self, method: &Method) -> Result<(), Error> {
        let mut out = Vec::with_capacity(method.bytes().len() + AROUND);
        frame::put_method(&mut out, 0, method);
        self.stream.write_all(&out).await?;
        Ok(self.stream.flush().await?)
    }

    /// What belongs to the method that has to come next.
    async fn next(&mut self, wanted: method::Id) -> Result<Bytes, Error> {
        let frame = loop {
            match frame::take(self.arrived, LARGEST_FRAME as usize)? {
                Some(frame) if frame.kind == frame::HEARTBEAT => {}
                Some(frame) => break frame,
                None => {
                    if self.stream.read_buf(self.arrived).await? == 0 {
                        return Err(std::io::Error::from(std::io::ErrorKind::ConnectionAborted).into());
                    }
                }
            }
        };
        let mut reader = Reader(&frame.payload);
        match (reader.u16()?, reader.u16()?) {
            id if id == wanted => Ok(frame.payload.slice(4..)),
            method::CLOSE => {
                let (code, said) = (reader.u16()?, text(reader.short()?));
                Err(Error::Connection { code, text: said })
            }
            method::SECURE => {
                Err(Error::NotUnderstood("the server asks for more than a password".to_owned()))
            }
            (class, number) => Err(Error::NotUnderstood(format!("method {class}.{number} in the handshake"))),
        }
    }
}
