//! Locks, also after a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also what another thread held while it panicked.
pub fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
