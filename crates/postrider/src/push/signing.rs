//! Signatures as Standard Webhooks 1.0 has them: `v1` by a shared secret, `v1a` by an ed25519 key.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::{Signer as _, SigningKey};
use hmac::{Hmac, KeyInit as _, Mac as _};
use secrecy::{ExposeSecret as _, SecretString};
use sha2::Sha256;

/// What signs requests. Never shown after it was made: it prints as nothing, and no list has it.
#[derive(Debug, Clone)]
pub struct SigningSecret {
    text: SecretString,
    /// Worked out once: for a key pair that takes as long as to sign with it.
    key: Key,
}

#[derive(Clone)]
enum Key {
    /// HMAC-SHA256: both sides have the secret.
    Shared(Box<Hmac<Sha256>>),
    /// ed25519: receivers have the public key only.
    Pair(Box<SigningKey>),
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Not a secret as the standard writes it. Says nothing of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a signing secret is whsec_ and 24 to 64 bytes in base64, or whsk_ and an ed25519 key; leave it out to have one made"
)]
pub struct BadSecret;

const SHARED: &str = "whsec_";
const PRIVATE: &str = "whsk_";
const PUBLIC: &str = "whpk_";
/// The longest shared secret, which is a block of SHA-256.
const LONGEST: usize = 64;

impl SigningSecret {
    /// Reads one as it was shown.
    pub fn parse(text: &str) -> Result<Self, BadSecret> {
        let text = text.trim();
        let key = key(text).ok_or(BadSecret)?;
        Ok(Self { text: text.to_owned().into(), key })
    }

    /// A shared secret made of random bytes.
    pub fn shared(random: [u8; 32]) -> Self {
        let text = format!("{SHARED}{}", BASE64.encode(random)).into();
        Self { text, key: Key::Shared(Box::new(mac(&random))) }
    }

    /// A key pair made of random bytes.
    pub fn key_pair(random: [u8; 32]) -> Self {
        let pair = SigningKey::from_bytes(&random);
        let text = format!("{PRIVATE}{}", BASE64.encode(pair.to_keypair_bytes())).into();
        Self { text, key: Key::Pair(Box::new(pair)) }
    }

    /// The text, to be shown once or stored.
    pub fn reveal(&self) -> &str {
        self.text.expose_secret()
    }

    /// What receivers verify with, if that can be shown to anybody.
    pub fn public_key(&self) -> Option<String> {
        let Key::Pair(pair) = &self.key else { return None };
        Some(format!("{PUBLIC}{}", BASE64.encode(pair.verifying_key().to_bytes())))
    }

    /// One signature of `id.timestamp.body`.
    pub fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let head = format!("{id}.{timestamp}.");
        match &self.key {
            Key::Shared(mac) => {
                let mut mac = Hmac::clone(mac);
                mac.update(head.as_bytes());
                mac.update(body);
                format!("v1,{}", BASE64.encode(mac.finalize().into_bytes()))
            }
            Key::Pair(pair) => {
                let signature = pair.sign(&[head.as_bytes(), body].concat());
                format!("v1a,{}", BASE64.encode(signature.to_bytes()))
            }
        }
    }

    /// Whether receivers verify it with a public key.
    pub fn is_key_pair(&self) -> bool {
        matches!(self.key, Key::Pair(_))
    }
}

/// The key that a text stands for.
fn key(text: &str) -> Option<Key> {
    if let Some(rest) = text.strip_prefix(SHARED) {
        let bytes = BASE64.decode(rest).ok()?;
        return (24..=LONGEST).contains(&bytes.len()).then(|| Key::Shared(Box::new(mac(&bytes))));
    }
    let bytes = BASE64.decode(text.strip_prefix(PRIVATE)?).ok()?;
    // A seed, or a seed and the public key after it.
    let seed = bytes.first_chunk().filter(|_| matches!(bytes.len(), 32 | 64))?;
    Some(Key::Pair(Box::new(SigningKey::from_bytes(seed))))
}

/// HMAC fills a key with zeros to a block of the hash, and none is longer.
fn mac(key: &[u8]) -> Hmac<Sha256> {
    let mut block = [0; LONGEST];
    block.iter_mut().zip(key).for_each(|(place, byte)| *place = *byte);
    Hmac::<Sha256>::new(&block.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the standard's own libraries.
    #[test]
    fn the_standards_own_example_verifies() {
        let secret = SigningSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signature =
            secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_key_pair_signs_and_its_public_half_verifies() {
        use ed25519_dalek::{Signature, Verifier as _, VerifyingKey};

        let secret = SigningSecret::key_pair([7; 32]);
        let read = SigningSecret::parse(secret.reveal()).unwrap();
        let signature = read.sign("evt_1", 5, b"{}");
        let bytes = BASE64.decode(signature.strip_prefix("v1a,").unwrap()).unwrap();
        let public = secret.public_key().unwrap();
        let public = BASE64.decode(public.strip_prefix("whpk_").unwrap()).unwrap();
        let public = VerifyingKey::from_bytes(&public.try_into().unwrap()).unwrap();
        public.verify(b"evt_1.5.{}", &Signature::from_slice(&bytes).unwrap()).unwrap();
    }

    #[test]
    fn a_secret_that_was_made_signs_as_it_does_when_it_is_read_again() {
        for made in [SigningSecret::shared([9; 32]), SigningSecret::key_pair([9; 32])] {
            let read = SigningSecret::parse(made.reveal()).unwrap();
            assert_eq!(read.sign("evt_1", 5, b"{}"), made.sign("evt_1", 5, b"{}"));
            assert_eq!((read.public_key(), read.is_key_pair()), (made.public_key(), made.is_key_pair()));
        }
        for bytes in [24, 64] {
            assert!(SigningSecret::parse(&format!("{SHARED}{}", BASE64.encode(vec![1; bytes]))).is_ok());
        }
        for bytes in [23, 65] {
            assert!(SigningSecret::parse(&format!("{SHARED}{}", BASE64.encode(vec![1; bytes]))).is_err());
        }
    }

    #[test]
    fn a_secret_is_never_shown() {
        let secret = SigningSecret::shared([1; 32]);
        assert!(!format!("{secret:?}").contains(&secret.reveal()[6..]));
        for wrong in ["", "hunter2", "whsec_", "whsec_c2hvcnQ=", "whsec_***", "whsk_c2hvcnQ="] {
            let told = SigningSecret::parse(wrong).unwrap_err().to_string();
            assert!(wrong.is_empty() || wrong == "whsec_" || !told.contains(wrong), "{told}");
        }
    }
}
