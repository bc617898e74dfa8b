//! A list whose elements never move: a vector that doubles needs its old and its new memory at the same time.

/// Elements of one block.
const BLOCK: usize = 1 << 10;

/// A list in blocks.
#[derive(Debug)]
pub(super) struct Blocks<T>(Vec<Vec<T>>);

impl<T> Default for Blocks<T> {
    fn default() -> Self {
        Blocks(Vec::new())
    }
}

impl<T> Blocks<T> {
    pub fn len(&self) -> usize {
        self.0.last().map_or(0, |last| (self.0.len() - 1) * BLOCK + last.len())
    }

    /// Adds an element and returns its index.
    pub fn push(&mut self, element: T) -> usize {
        let index = self.len();
        if index.is_multiple_of(BLOCK) {
            self.0.push(Vec::with_capacity(BLOCK));
        }
        self.0[index / BLOCK].push(element);
        index
    }

    pub fn get(&self, index: usize) -> &T {
        &self.0[index / BLOCK][index % BLOCK]
    }

    pub fn get_mut(&mut self, index: usize) -> &mut T {
        &mut self.0[index / BLOCK][index % BLOCK]
    }
}
