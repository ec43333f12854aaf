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
    scheme: Scheme,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    /// HMAC-SHA256: both sides have the secret.
    Shared,
    /// ed25519: receivers have the public key only.
    KeyPair,
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

impl SigningSecret {
    /// Reads one as it was shown.
    pub fn parse(text: &str) -> Result<Self, BadSecret> {
        let text = text.trim();
        let (scheme, bytes) = bytes(text).ok_or(BadSecret)?;
        let fits = match scheme {
            Scheme::Shared => (24..=64).contains(&bytes.len()),
            // A seed, or a seed and the public key after it.
            Scheme::KeyPair => matches!(bytes.len(), 32 | 64),
        };
        fits.then(|| Self { text: text.to_owned().into(), scheme }).ok_or(BadSecret)
    }

    /// A shared secret made of random bytes.
    pub fn shared(random: [u8; 32]) -> Self {
        Self { text: format!("{SHARED}{}", BASE64.encode(random)).into(), scheme: Scheme::Shared }
    }

    /// A key pair made of random bytes.
    pub fn key_pair(random: [u8; 32]) -> Self {
        let both = SigningKey::from_bytes(&random).to_keypair_bytes();
        Self { text: format!("{PRIVATE}{}", BASE64.encode(both)).into(), scheme: Scheme::KeyPair }
    }

    /// The text, to be shown once or stored.
    pub fn reveal(&self) -> &str {
        self.text.expose_secret()
    }

    /// What receivers verify with, if that can be shown to anybody.
    pub fn public_key(&self) -> Option<String> {
        let key = self.signing_key()?.verifying_key();
        Some(format!("{PUBLIC}{}", BASE64.encode(key.to_bytes())))
    }

    /// One signature of `id.timestamp.body`.
    pub fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let head = format!("{id}.{timestamp}.");
        if self.is_key_pair() {
            let Some(key) = self.signing_key() else { return String::new() };
            let signature = key.sign(&[head.as_bytes(), body].concat());
            return format!("v1a,{}", BASE64.encode(signature.to_bytes()));
        }
        let key = bytes(self.reveal()).map(|(_, bytes)| bytes).unwrap_or_default();
        // A key of any length is a key.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&key) else { return String::new() };
        mac.update(head.as_bytes());
        mac.update(body);
        format!("v1,{}", BASE64.encode(mac.finalize().into_bytes()))
    }

    fn signing_key(&self) -> Option<SigningKey> {
        let (Scheme::KeyPair, bytes) = bytes(self.reveal())? else { return None };
        Some(SigningKey::from_bytes(bytes.first_chunk()?))
    }

    /// Whether receivers verify it with a public key.
    pub fn is_key_pair(&self) -> bool {
        self.scheme == Scheme::KeyPair
    }
}

fn bytes(text: &str) -> Option<(Scheme, Vec<u8>)> {
    let (scheme, rest) = match text.strip_prefix(SHARED) {
        Some(rest) => (Scheme::Shared, rest),
        None => (Scheme::KeyPair, text.strip_prefix(PRIVATE)?),
    };
    Some((scheme, BASE64.decode(rest).ok()?))
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
    fn a_secret_is_never_shown() {
        let secret = SigningSecret::shared([1; 32]);
        assert!(!format!("{secret:?}").contains(&secret.reveal()[6..]));
        for wrong in ["", "hunter2", "whsec_", "whsec_c2hvcnQ=", "whsec_***", "whsk_c2hvcnQ="] {
            let told = SigningSecret::parse(wrong).unwrap_err().to_string();
            assert!(wrong.is_empty() || wrong == "whsec_" || !told.contains(wrong), "{told}");
        }
    }
}
