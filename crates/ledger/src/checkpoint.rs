//! Checkpoints: a signed root over a run of entries, published outside of the database as an anchor.
//!
//! The root is that of a Merkle tree over the hashes of the entries: a leaf is SHA-256(0x00, hash), a node is
//! SHA-256(0x01, left, right), and a node without a sibling moves up as it is. Whoever has the root can be shown that one
//! entry is in it with a few hashes ([`Proof`]).
//!
//! What is signed (ed25519), in this order: the text `postrider.ledger.checkpoint.v1` and a zero byte, the tenant as a text
//! (length in bytes as u32 big-endian, then UTF-8), the first and the last number (u64 big-endian), the root, the hash of the last
//! entry, and the time in microseconds since 1970 (i64 big-endian).

use std::fmt;
use std::str::FromStr;

use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use jiff::Timestamp;
use postrider::envelope::{TenantId, hex};
use serde::ser::SerializeStruct as _;
use sha2::{Digest as _, Sha256};

use crate::chain::Hash;

/// The key that signs. Its seed never leaves it; nothing prints it.
pub struct Key(SigningKey);

impl Key {
    /// From 32 bytes that nobody else knows.
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self(SigningKey::from_bytes(&seed))
    }

    /// What others check its signatures with.
    pub fn public(&self) -> [u8; 32] {
        self.0.verifying_key().to_bytes()
    }
}

/// What others check signatures with, as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublicKey(pub [u8; 32]);

impl FromStr for PublicKey {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            let shown: String = text.chars().take(80).collect();
            format!(
                "{shown:?} is no public key; it has 64 hexadecimal digits, as `postrider ledger checkpoint` shows them"
            )
        };
        let key = Hash::from_hex(text.trim()).ok_or_else(bad)?.0;
        VerifyingKey::from_bytes(&key).map(|_| Self(key)).map_err(|_| bad())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl serde::Serialize for PublicKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A signed statement about a run of entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The first entry.
    pub first: u64,
    /// The last entry.
    pub last: u64,
    /// The root over their hashes.
    pub root: Hash,
    /// The hash of the last entry.
    pub head: Hash,
    /// When it was made.
    pub made_at: Timestamp,
    /// Who signed.
    pub public_key: [u8; 32],
    /// The signature.
    pub signature: [u8; 64],
}

/// The same members wherever it is shown or told; numbers are texts.
impl serde::Serialize for Checkpoint {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut shown = serializer.serialize_struct("Checkpoint", 7)?;
        shown.serialize_field("first", &self.first.to_string())?;
        shown.serialize_field("last", &self.last.to_string())?;
        shown.serialize_field("root", &self.root)?;
        shown.serialize_field("head", &self.head)?;
        shown.serialize_field("madeAt", &self.made_at)?;
        shown.serialize_field("publicKey", &hex(&self.public_key))?;
        shown.serialize_field("signature", &hex(&self.signature))?;
        shown.end()
    }
}

impl Checkpoint {
    /// Signs a run of entries by their hashes; nothing for an empty run.
    pub fn sign(key: &Key, tenant: &TenantId, first: u64, hashes: &[Hash], at: Timestamp) -> Option<Self> {
        let head = *hashes.last()?;
        let mut checkpoint = Self {
            first,
            last: first + hashes.len() as u64 - 1,
            root: root(hashes),
            head,
            made_at: at,
            public_key: key.public(),
            signature: [0; 64],
        };
        checkpoint.signature = key.0.sign(&checkpoint.statement(tenant)).to_bytes();
        Some(checkpoint)
    }

    /// Whether the signature is that of its public key over what it says.
    pub fn is_signed(&self, tenant: &TenantId) -> bool {
        let Ok(key) = VerifyingKey::from_bytes(&self.public_key) else { return false };
        key.verify_strict(&self.statement(tenant), &Signature::from_bytes(&self.signature)).is_ok()
    }

    fn statement(&self, tenant: &TenantId) -> Vec<u8> {
        let mut bytes = b"postrider.ledger.checkpoint.v1\0".to_vec();
        bytes.extend(u32::try_from(tenant.as_str().len()).unwrap_or(u32::MAX).to_be_bytes());
        bytes.extend(tenant.as_str().as_bytes());
        bytes.extend(self.first.to_be_bytes());
        bytes.extend(self.last.to_be_bytes());
        bytes.extend(self.root.0);
        bytes.extend(self.head.0);
        bytes.extend(self.made_at.as_microsecond().to_be_bytes());
        bytes
    }
}

/// The way from one entry to the root: at each step the sibling, and whether it stands on the left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// From the bottom up.
    pub path: Vec<(bool, Hash)>,
}

impl Proof {
    /// The proof for the entry at this place of the run.
    pub fn of(hashes: &[Hash], place: usize) -> Option<Self> {
        let (mut level, mut place, mut path) = (leaves(hashes), place, Vec::new());
        level.get(place)?;
        while level.len() > 1 {
            if let Some(sibling) = level.get(place ^ 1) {
                path.push((place % 2 == 1, *sibling));
            }
            level = parents(&level);
            place /= 2;
        }
        Some(Self { path })
    }

    /// The root that this proof leads to from an entry's hash.
    pub fn root(&self, entry: &Hash) -> Hash {
        self.path.iter().fold(
            leaf(entry),
            |at, (left, sibling)| {
                if *left { parent(sibling, &at) } else { parent(&at, sibling) }
            },
        )
    }
}

/// The root over the hashes of a run of entries.
pub fn root(hashes: &[Hash]) -> Hash {
    let mut level = leaves(hashes);
    while level.len() > 1 {
        level = parents(&level);
    }
    level.first().copied().unwrap_or(Hash::ZERO)
}

fn leaves(hashes: &[Hash]) -> Vec<Hash> {
    hashes.iter().map(leaf).collect()
}

fn parents(level: &[Hash]) -> Vec<Hash> {
    let up = |pair: &[Hash]| match pair {
        [left, right] => parent(left, right),
        [alone] => *alone,
        _ => Hash::ZERO,
    };
    level.chunks(2).map(up).collect()
}

fn leaf(hash: &Hash) -> Hash {
    Hash(Sha256::new().chain_update([0]).chain_update(hash.0).finalize().into())
}

fn parent(left: &Hash, right: &Hash) -> Hash {
    Hash(Sha256::new().chain_update([1]).chain_update(left.0).chain_update(right.0).finalize().into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hashes(count: usize) -> Vec<Hash> {
        (0..count).map(|n| Hash(Sha256::digest(n.to_be_bytes()).into())).collect()
    }

    #[test]
    fn a_changed_checkpoint_is_not_signed() {
        let key = Key::from_seed([7; 32]);
        let tenant = TenantId::new("acme").unwrap();
        let made = Checkpoint::sign(&key, &tenant, 1, &hashes(5), Timestamp::UNIX_EPOCH).unwrap();
        assert!(made.is_signed(&tenant));
        assert!(!made.is_signed(&TenantId::new("other").unwrap()));
        let mut other = made.clone();
        other.last += 1;
        assert!(!other.is_signed(&tenant));
        let mut other = made;
        other.root.0[0] ^= 1;
        assert!(!other.is_signed(&tenant));
    }

    proptest! {
        #[test]
        fn every_entry_of_a_run_can_be_proved(count in 1_usize..70, place in 0_usize..70) {
            let hashes = hashes(count);
            match Proof::of(&hashes, place) {
                None => prop_assert!(place >= count),
                Some(proof) => {
                    prop_assert_eq!(proof.root(&hashes[place]), root(&hashes));
                    prop_assert_ne!(proof.root(&Hash::ZERO), root(&hashes));
                }
            }
        }
    }
}
