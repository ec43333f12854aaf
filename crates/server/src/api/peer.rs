//! The other end of a connection: whether somebody is still there to read an answer.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use postrider::Clock;
#[cfg(target_os = "linux")]
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How often somebody who is waited for is looked at.
const LOOKS: Duration = Duration::from_millis(250);

/// Who sent a request.
#[derive(Debug, Clone)]
pub(crate) struct Peer(Arc<TcpStream>);

impl Peer {
    /// The peer of this socket, which has to be one that never blocks. It is looked at beside whoever reads from it.
    pub(crate) fn of(socket: &impl AsFd) -> io::Result<Self> {
        Ok(Self(Arc::new(socket.as_fd().try_clone_to_owned()?.into())))
    }

    /// Returns once the peer has closed its side. That is all that is seen of one that was killed, or has lost its patience; one that only
    /// says that it will send no more looks the same.
    pub(crate) async fn left(&self, clock: &Clock) {
        while !self.has_left() {
            clock.sleep(LOOKS).await;
        }
    }

    fn has_left(&self) -> bool {
        match self.0.peek(&mut [0]) {
            // By TLS it says goodbye first. Nobody reads that while he is waited for, and the end stands behind it.
            Ok(sent) => sent == 0 || self.sends_no_more(),
            Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
    }

    /// Whether its side is closed, whatever it sent before that.
    #[cfg(target_os = "linux")]
    fn sends_no_more(&self) -> bool {
        let mut asked = [PollFd::new(&*self.0, PollFlags::RDHUP)];
        poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|closed| closed > 0)
    }

    /// Elsewhere nobody tells.
    #[cfg(not(target_os = "linux"))]
    fn sends_no_more(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn who_closes_his_side_has_left_and_who_says_nothing_has_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        let peer = Peer::of(&socket).unwrap();
        assert!(!peer.has_left());
        client.write_all(b"more").unwrap();
        assert!(!peer.has_left());
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        let peer = Peer::of(&socket).unwrap();
        drop(client);
        while !peer.has_left() {
            std::thread::yield_now();
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn who_says_goodbye_before_has_left_too() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        let peer = Peer::of(&socket).unwrap();
        client.write_all(b"what TLS sends at the end").unwrap();
        assert!(!peer.has_left());
        drop(client);
        while !peer.has_left() {
            std::thread::yield_now();
        }
    }
}
