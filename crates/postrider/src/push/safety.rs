//! Where a request may go: public addresses by https, and what the configuration allows beside them.
//!
//! A name is resolved here and nowhere else, every address it has is checked, and the connection goes to one of those that
//! were: a name that points elsewhere a moment later gains nothing. Addresses written into a url are checked before each call.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

/// A range of addresses, such as `10.0.0.0/8` or `::1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    /// As IPv6; an IPv4 address stands in its mapped form.
    address: u128,
    bits: u32,
}

impl Network {
    const fn v4(a: u8, b: u8, c: u8, d: u8, bits: u32) -> Self {
        Self { address: Ipv4Addr::new(a, b, c, d).to_ipv6_mapped().to_bits(), bits: 96 + bits }
    }

    const fn v6(first: u16, second: u16, bits: u32) -> Self {
        Self { address: Ipv6Addr::new(first, second, 0, 0, 0, 0, 0, 0).to_bits(), bits }
    }

    fn contains(self, address: IpAddr) -> bool {
        let shift = 128 - self.bits;
        let part = |bits: u128| bits.checked_shr(shift).unwrap_or(0);
        part(whole(address)) == part(self.address)
    }
}

/// An address as IPv6, with IPv4 in its mapped form.
fn whole(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl std::str::FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no address and no range such as 10.0.0.0/8 or fd00::/8");
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let (most, before) = if address.is_ipv4() { (32, 96) } else { (128, 0) };
        let bits: u32 = bits.map_or(Ok(most), str::parse).map_err(|_| wrong())?;
        if bits > most {
            return Err(wrong());
        }
        Ok(Self { address: whole(address), bits: before + bits })
    }
}

/// Addresses that are nobody's on the internet, or a machine's own business: private, loopback, link-local, shared, metadata,
/// documentation, benchmarks, multicast, reserved.
const NOT_PUBLIC_V4: [Network; 16] = [
    Network::v4(0, 0, 0, 0, 8),
    Network::v4(10, 0, 0, 0, 8),
    Network::v4(100, 64, 0, 0, 10),
    Network::v4(127, 0, 0, 0, 8),
    Network::v4(168, 63, 129, 16, 32), // a cloud's own service, though its address looks public
    Network::v4(169, 254, 0, 0, 16),
    Network::v4(172, 16, 0, 0, 12),
    Network::v4(192, 0, 0, 0, 24),
    Network::v4(192, 0, 2, 0, 24),
    Network::v4(192, 88, 99, 0, 24),
    Network::v4(192, 168, 0, 0, 16),
    Network::v4(198, 18, 0, 0, 15),
    Network::v4(198, 51, 100, 0, 24),
    Network::v4(203, 0, 113, 0, 24),
    Network::v4(224, 0, 0, 0, 4),
    Network::v4(240, 0, 0, 0, 4),
];

/// Public IPv6 addresses are in here …
const PUBLIC_V6: Network = Network::v6(0x2000, 0, 3);

/// … but these are not: protocol assignments and Teredo, documentation, 6to4, documentation.
const NOT_PUBLIC_V6: [Network; 4] = [
    Network::v6(0x2001, 0, 23),
    Network::v6(0x2001, 0xdb8, 32),
    Network::v6(0x2002, 0, 16),
    Network::v6(0x3fff, 0, 20),
];

/// Whether anybody on the internet could have this address. IPv4 inside of IPv6, mapped or translated, is not public.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => !NOT_PUBLIC_V4.iter().any(|network| network.contains(address)),
        IpAddr::V6(_) => {
            PUBLIC_V6.contains(address) && !NOT_PUBLIC_V6.iter().any(|network| network.contains(address))
        }
    }
}

/// What is allowed beside public https: for sidecars and services in a network of one's own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowed {
    networks: Vec<Network>,
    plain_http: bool,
}

impl Allowed {
    /// From `["127.0.0.1/32", "http"]`: addresses, ranges, and the word for http without TLS.
    pub fn new<T: AsRef<str>>(entries: &[T]) -> Result<Self, String> {
        let mut allowed = Self::default();
        for entry in entries {
            match entry.as_ref().trim() {
                "http" => allowed.plain_http = true,
                other => allowed.networks.push(other.parse()?),
            }
        }
        Ok(allowed)
    }

    /// Checks what can be checked of a url without resolving its name.
    pub fn check_url(&self, url: &Url) -> Result<(), Unsafe> {
        match url.scheme() {
            "https" => {}
            "http" if self.plain_http => {}
            "http" => return Err(Unsafe::Plain),
            other => return Err(Unsafe::Scheme(other.to_owned())),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Unsafe::Credentials);
        }
        match url.host() {
            None => Err(Unsafe::NoHost),
            Some(Host::Ipv4(address)) => self.check(address.into()),
            Some(Host::Ipv6(address)) => self.check(address.into()),
            Some(Host::Domain(_)) => Ok(()),
        }
    }

    /// Checks an address.
    pub fn check(&self, address: IpAddr) -> Result<(), Unsafe> {
        if is_public(address) || self.networks.iter().any(|network| network.contains(address)) {
            return Ok(());
        }
        Err(Unsafe::Address(address))
    }

    /// Checks all addresses of a name. One that is not allowed spoils them all: nobody has both for a good reason.
    fn check_all(&self, addresses: Vec<IpAddr>) -> Result<Vec<IpAddr>, Unsafe> {
        addresses.iter().try_for_each(|address| self.check(*address))?;
        Ok(addresses)
    }
}

/// Why a request does not go out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsafe {
    /// An address that is not public.
    #[error("{0} is not a public address; if it is meant, add it to egress.allow")]
    Address(IpAddr),
    /// Without TLS.
    #[error("http without TLS is not allowed; use https, or add \"http\" to egress.allow")]
    Plain,
    /// Neither http nor https.
    #[error("{0}: is neither https nor http")]
    Scheme(String),
    /// No host at all.
    #[error("the url has no host")]
    NoHost,
    /// A user or a password.
    #[error("the url has a user or a password in it, which logs would show; send a header instead")]
    Credentials,
}

/// Who knows the addresses of a name.
pub trait Names: Send + Sync + 'static {
    /// All of them.
    fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, std::io::Result<Vec<IpAddr>>>;
}

/// The machine's own resolver.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemNames;

impl Names for SystemNames {
    fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, std::io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}

/// Resolves names for the client and checks what it finds. The client connects to what it is given here.
pub(super) struct Guard {
    pub(super) names: Arc<dyn Names>,
    pub(super) allowed: Allowed,
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let (names, allowed) = (self.names.clone(), self.allowed.clone());
        Box::pin(async move {
            let found = names.resolve(name.as_str()).await?;
            let addresses = allowed.check_all(found)?;
            let addresses: Addrs = Box::new(addresses.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(addresses)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_are_public() {
        let ours = [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.255.254",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "239.1.1.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "100::1",
            "fe80::1",
            "fec0::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::1",
            "3fff::1",
            "4000::1",
        ];
        for address in ours {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
        for address in
            ["1.1.1.1", "8.8.8.8", "100.63.255.255", "172.32.0.1", "2606:4700::1111", "2a00:1450::1"]
        {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn an_address_is_known_in_every_spelling() {
        let allowed = Allowed::default();
        let spellings = [
            "https://127.0.0.1/",
            "https://127.1/",
            "https://0x7f.0.0.1/",
            "https://0x7f000001/",
            "https://2130706433/",
            "https://0177.0.0.1/",
            "https://017700000001/",
            "https://127.0.0.1./",
            "https://①②⑦.0.0.1/",
            "https://[::1]/",
            "https://[::ffff:7f00:1]/",
            "https://[0:0:0:0:0:ffff:127.0.0.1]/",
            "https://0/",
            "https://169.254.169.254/",
        ];
        for url in spellings {
            let url = Url::parse(url).unwrap();
            assert!(matches!(allowed.check_url(&url), Err(Unsafe::Address(_))), "{url}");
        }
        for (url, why) in [
            ("http://example.com/", Unsafe::Plain),
            ("ftp://example.com/", Unsafe::Scheme("ftp".to_owned())),
            ("https://user:password@example.com/", Unsafe::Credentials),
        ] {
            assert_eq!(allowed.check_url(&Url::parse(url).unwrap()), Err(why));
        }
        assert!(allowed.check_url(&Url::parse("https://example.com:8443/hook").unwrap()).is_ok());
    }

    #[test]
    fn what_is_allowed_is_allowed_and_no_more() {
        let allowed = Allowed::new(&["127.0.0.1/32", "10.1.0.0/16", "fd00::/8", "http"]).unwrap();
        for (address, so) in [
            ("127.0.0.1", true),
            ("::ffff:127.0.0.1", true),
            ("127.0.0.2", false),
            ("10.1.255.1", true),
            ("10.2.0.1", false),
            ("fd12::1", true),
            ("fe80::1", false),
            ("::1", false),
            ("8.8.8.8", true),
        ] {
            assert_eq!(allowed.check(address.parse().unwrap()).is_ok(), so, "{address}");
        }
        assert!(allowed.check_url(&Url::parse("http://localhost:1/").unwrap()).is_ok());
        let mixed = vec!["8.8.8.8".parse().unwrap(), "192.168.0.1".parse().unwrap()];
        assert!(allowed.check_all(mixed).is_err(), "one bad address spoils all");
        assert!(Allowed::new(&["0.0.0.0/0"]).unwrap().check("127.0.0.1".parse().unwrap()).is_ok());
        for wrong in ["localhost", "10.0.0.0/33", "10.0.0/8", ""] {
            assert!(Allowed::new(&[wrong]).is_err(), "{wrong}");
        }
    }
}
