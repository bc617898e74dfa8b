//! What became of each content. Small, since at the end of a recording there may be one for each path.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::snapshot::{BlobOmitted, Digest};

/// What became of a content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Its digest, where it was read to its end.
    pub digest: Option<Digest>,
    /// How many bytes were read.
    pub size: u64,
    /// The key that holds it, where it is stored.
    pub blob: Option<Arc<str>>,
    /// Why it is not stored.
    pub omitted: Option<BlobOmitted>,
}

impl Outcome {
    /// That of a content whose bytes are unknown.
    pub fn omitted(reason: BlobOmitted) -> Outcome {
        Outcome { digest: None, size: 0, blob: None, omitted: Some(reason) }
    }
}

/// The outcomes, in the order in which the contents were handed in.
#[derive(Debug, Default)]
pub struct Outcomes {
    entries: Vec<Entry>,
    blobs: Vec<Arc<str>>,
}

#[derive(Debug)]
struct Entry {
    digest: Option<Digest>,
    omitted: Option<BlobOmitted>,
    /// The number of the key, from 1.
    blob: Option<NonZeroU32>,
    size: u64,
}

const _: () = assert!(size_of::<Entry>() <= 48);

impl Outcomes {
    /// Adds the next one.
    pub fn push(&mut self, Outcome { digest, size, blob, omitted }: Outcome) {
        let blob = blob.and_then(|blob| {
            // Files with the same bytes often follow one another.
            if self.blobs.last().is_none_or(|last| !Arc::ptr_eq(last, &blob)) {
                self.blobs.push(blob);
            }
            NonZeroU32::new(u32::try_from(self.blobs.len()).expect("tickets are 32 bits"))
        });
        self.entries.push(Entry { digest, omitted, blob, size });
    }

    /// Adds those of `later`; without a copy, where these are the first.
    pub fn extend(&mut self, later: Outcomes) {
        if self.entries.is_empty() {
            *self = later;
        } else {
            (0..later.entries.len()).filter_map(|at| later.get(at)).for_each(|outcome| self.push(outcome));
        }
    }

    /// One of them, if there are so many.
    pub fn get(&self, at: usize) -> Option<Outcome> {
        let &Entry { digest, omitted, blob, size } = self.entries.get(at)?;
        let blob = blob.map(|number| Arc::clone(&self.blobs[number.get() as usize - 1]));
        Some(Outcome { digest, size, blob, omitted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_found_again_in_order_those_of_two_lists_too() {
        let stored = |number: u8| Outcome {
            digest: Some(Digest::Sha256([number; 32])),
            size: number.into(),
            blob: Some(format!("before:/{number}").into()),
            omitted: None,
        };
        let digested = Outcome { blob: None, omitted: Some(BlobOmitted::TooLarge), ..stored(2) };
        let unreadable = Outcome::omitted(BlobOmitted::Unreadable);
        let all = [stored(1), digested, stored(3), stored(4), unreadable];
        let all = all.each_ref().map(|outcome| [outcome.clone(), outcome.clone()]).as_flattened().to_vec();
        for first in 0..all.len() {
            let mut lists = [Outcomes::default(), Outcomes::default()];
            for (at, outcome) in all.iter().enumerate() {
                lists[usize::from(at >= first)].push(outcome.clone());
            }
            let [mut joined, later] = lists;
            joined.extend(later);
            let found: Vec<_> = (0..=all.len()).map_while(|at| joined.get(at)).collect();
            assert_eq!(found, all, "{first}");
        }
    }
}
