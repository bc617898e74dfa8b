//! Why Git has no answer.

/// Why the bytes of a blob or a fact about a file are unknown; each message is a clause about the object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The repository is no longer there.
    #[error("the repository is gone")]
    RepositoryGone,
    /// The object is not in the object database, or is damaged there.
    #[error("the repository no longer has it")]
    Missing,
    /// The object is of another kind.
    #[error("it is a {0}")]
    NotABlob(gix::objs::Kind),
    /// The blob has another size.
    #[error("it has {found} bytes, not {expected}")]
    OtherSize {
        /// The size of the object.
        found: u64,
        /// The size that was expected.
        expected: u64,
    },
    /// The object's bytes are not those of its id.
    #[error("its bytes differ")]
    OtherBytes,
    /// The object database can't be read.
    #[error("{0}")]
    Database(String),
    /// A file of the repository is larger than its kind may be.
    #[error("a file of the repository is too large")]
    TooLarge,
    /// Only a filter driver, which is never run, could decide it.
    #[error("only a filter driver could decide it")]
    NeedsFilter,
    /// The file can't be read, or is no longer the one that was stat'ed.
    #[error("the file changed")]
    FileChanged,
}
