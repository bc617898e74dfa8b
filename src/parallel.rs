//! The same work on many items, on all processors.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// How many items a thread takes at once, where each is little work.
const BATCH: usize = 16;

/// The same where each is no more than a system call or two: a thread takes longer to start than these take.
const LARGE_BATCH: usize = 512;

/// How many threads work on contents: one of them may wait for the disk, and each has up to a row of the bundle in
/// memory.
const CONTENT_THREADS: usize = 3;

/// A function that is called when an item is done, from any thread.
pub type Tick<'a> = &'a (dyn Fn() + Sync);

/// Calls `work` with each item once, on all processors, and returns the results in the order of the items.
pub fn map<'a, T: Sync, R: Send>(items: &'a [T], tick: Tick<'_>, work: impl Fn(&'a T) -> R + Sync) -> Vec<R> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    map_on(processors, BATCH, items, tick, work)
}

/// The same where the work is a system call or two, such as lstat(2), of which no progress is shown.
pub fn map_calls<'a, T: Sync, R: Send>(items: &'a [T], work: impl Fn(&'a T) -> R + Sync) -> Vec<R> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    map_on(processors, LARGE_BATCH, items, &|| {}, work)
}

/// The same where the work is to read or write contents: a large one weighs as much as many small ones.
pub fn map_contents<'a, T: Sync, R: Send>(
    items: &'a [T],
    tick: Tick<'_>,
    work: impl Fn(&'a T) -> R + Sync,
) -> Vec<R> {
    map_on(CONTENT_THREADS, 1, items, tick, work)
}

fn map_on<'a, T: Sync, R: Send>(
    threads: usize,
    batch: usize,
    items: &'a [T],
    tick: Tick<'_>,
    work: impl Fn(&'a T) -> R + Sync,
) -> Vec<R> {
    let threads = threads.min(items.len().div_ceil(batch));
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let take = || {
        let mut results = Vec::new();
        loop {
            let start = next.fetch_add(batch, Ordering::Relaxed);
            let Some(items) =
                items.get(start..items.len().min(start + batch)).filter(|some| !some.is_empty())
            else {
                break;
            };
            for (index, item) in (start..).zip(items) {
                results.push((index, work(item)));
                tick();
            }
        }
        done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).append(&mut results);
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(take);
        }
        take();
    });
    let mut results = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.sort_unstable_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_item_is_worked_on_once_and_results_keep_their_order() {
        for len in [0, 1, BATCH, 1000] {
            let items: Vec<usize> = (0..len).collect();
            let ticks = AtomicUsize::new(0);
            let tick = || {
                ticks.fetch_add(1, Ordering::Relaxed);
            };
            assert_eq!(
                map(&items, &tick, |item| item * 2),
                items.iter().map(|item| item * 2).collect::<Vec<_>>()
            );
            assert_eq!(ticks.into_inner(), len);
        }
    }
}
