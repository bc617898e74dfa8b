//! Random numbers that a seed determines (splitmix64).

#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d);
        rng.next();
        rng
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.next() >> 1).unwrap_or(0) % length
    }

    /// Whether something that happens so many times in a hundred happens.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }

    /// Bytes of a size that some program has: nothing, a few, a page, more than is read at once.
    pub fn content(&mut self) -> Vec<u8> {
        let length = match self.below(40) {
            0..4 => 0,
            4..28 => 1 + self.index(100),
            28..34 => 4096,
            34..37 => 4097 + self.index(9000),
            37..39 => 66_000 + self.index(1000),
            _ => 1_050_000 + self.index(1000),
        };
        self.bytes(length)
    }
}
