//! stub
use crate::snapshot::*;
/// stub
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// o
    pub oid: Option<gix::ObjectId>,
}
/// stub
#[derive(Default)]
pub struct Repositories;
#[allow(missing_docs)]
impl Repositories {
    pub fn new() -> Self {
        Repositories
    }
    pub fn classify(&mut self, _p: &[u8], _s: Option<&libc::stat>) -> Option<Facts> {
        None
    }
    pub fn note_change(&mut self, _p: &[u8]) {}
    pub fn repositories(&self) -> Vec<GitRepository> {
        vec![]
    }
    pub fn state(&self, _f: &Facts, _p: &[u8]) -> GitState {
        unreachable!()
    }
}
