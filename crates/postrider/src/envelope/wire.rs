//! wire
/// x
#[derive(Debug, Clone, Copy)]
pub enum WireFormat {
    /// x
    Envelope,
}
