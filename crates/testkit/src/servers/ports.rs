//! Free ports that no other test process picks at the same time.
//!
//! Ports are taken below the range the kernel hands out by itself: a killed server's port must stay free until its
//! restart, and an outgoing connection could otherwise be given just that port. The claim on a port is an abstract Unix
//! socket named after it. The kernel frees it with the process that holds it, so a crash leaves no lock behind.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use anyhow::{Result, bail};

const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A port of 127.0.0.1 that is ours until this value is dropped, whether a server listens on it or not.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _claim: UnixListener,
}

impl Port {
    pub(crate) fn claim() -> Result<Self> {
        let start = u16::try_from(random() % u64::from(COUNT))?;
        for step in 0..COUNT {
            let number = FIRST + (start + step) % COUNT;
            if let Some(claim) = try_claim(number) {
                return Ok(Self { number, _claim: claim });
            }
        }
        bail!("no free port between {FIRST} and {}", FIRST + COUNT)
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

/// A random number, from the seed that every `RandomState` gets.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// Claims first and looks second: whoever loses the claim never looks, so two of us cannot both find the port free.
fn try_claim(number: u16) -> Option<UnixListener> {
    let address = SocketAddr::from_abstract_name(format!("postrider-port-{number}")).ok()?;
    let claim = UnixListener::bind_addr(&address).ok()?;
    TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
    Some(claim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claimed_port_is_not_given_out_again() {
        let port = Port::claim().unwrap();
        assert!(try_claim(port.number()).is_none());
        let number = port.number();
        drop(port);
        assert!(try_claim(number).is_some());
    }

    #[test]
    fn a_port_in_use_is_not_given_out() {
        let port = Port::claim().unwrap();
        let number = port.number();
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, number)).unwrap();
        drop(port);
        assert!(try_claim(number).is_none());
        drop(server);
    }
}
