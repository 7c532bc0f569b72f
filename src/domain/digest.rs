//! FNV-1a digests of texts. They are only compared with digests of the same Pod, or make names of objects.

/// A digest to which texts can be added.
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Digest(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// Adds a text and a separator after it.
    pub fn add_text(&mut self, text: &str) {
        for byte in text.bytes().chain([0]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// The digest of all texts so far.
    pub fn value(&self) -> u64 {
        self.0
    }
}
