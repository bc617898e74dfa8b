//! The JSON of `manifest.json`: the only place where bytes become text and text bytes.
//!
//! Text is UTF-8. Bytes that are not valid UTF-8 are shown through Latin-1, and the same object then
//! carries the exact bytes in base64 under the key with `_bytes` behind it. What is absent is left
//! out. `write.rs` and `read.rs` hold the two directions; the types are those of `manifest.rs`. Those without bytes
//! are derived there.

mod read;
mod text;
mod write;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::enforcement::EnforcementMode;
use super::manifest::{BlobOmitted, FileType, InodeFlag, Keep, Look, Operation, SnapshotKind, WarningKind};
use super::network::NetworkOperation;

pub use text::shown;
pub use write::write_manifest;
pub(crate) use write::{Each, JsonObject};

/// Gives an enum its words.
macro_rules! names {
    ($type:ident { $($variant:ident = $word:literal),* $(,)? }) => {
        impl $type {
            /// All of them, in order.
            pub const ALL: [$type; [$($word),*].len()] = [$($type::$variant),*];

            /// The word for it.
            pub fn name(self) -> &'static str {
                match self { $($type::$variant => $word),* }
            }
        }
    };
}
pub(crate) use names;

/// The same, and reads and writes them.
macro_rules! words {
    ($type:ident { $($variant:ident = $word:literal),* $(,)? }) => {
        names!($type { $($variant = $word),* });

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                match String::deserialize(deserializer)?.as_str() {
                    $($word => Ok($type::$variant),)*
                    other => Err(D::Error::unknown_variant(other, &[$($word),*])),
                }
            }
        }
    };
}

words!(SnapshotKind { Recording = "recording", Command = "command", Edit = "edit", Rescue = "rescue" });
words!(Keep { All = "all", Changes = "changes", Undo = "undo" });
words!(FileType {
    File = "file",
    Directory = "directory",
    Symlink = "symlink",
    Fifo = "fifo",
    Socket = "socket",
    CharDevice = "char_device",
    BlockDevice = "block_device",
});
words!(InodeFlag {
    Append = "append",
    Immutable = "immutable",
    Nodump = "nodump",
    Compressed = "compressed",
});
names!(Operation {
    Read = "read",
    Write = "write",
    Existence = "existence",
    Directory = "directory",
    Delete = "delete",
    Execute = "execute",
    Metadata = "metadata",
});
names!(Look {
    Existence = "existence",
    Attributes = "attributes",
    Content = "content",
    Entries = "entries",
    Xattrs = "xattrs",
    InodeFlags = "inode_flags",
    Holes = "holes",
    Transient = "transient",
    Place = "place",
});
words!(NetworkOperation { Connect = "connect", Bind = "bind", Send = "send" });
words!(EnforcementMode { Refuse = "refuse", End = "end" });
words!(BlobOmitted {
    TooLarge = "too_large",
    Unreadable = "unreadable",
    ChangedWhileReading = "changed_while_reading",
    NoSpace = "no_space",
    Withheld = "withheld",
});
words!(WarningKind {
    IoUring = "io_uring",
    CompatSyscall = "compat_syscall",
    UnmodelledSyscall = "unmodelled_syscall",
    UnreadableTracee = "unreadable_tracee",
    ExternalChange = "external_change",
    LateBeforeState = "late_before_state",
    ContentOmitted = "content_omitted",
    PathChangedAfterCheck = "path_changed_after_check",
    MountNamespace = "mount_namespace",
    Network = "network",
    Chroot = "chroot",
    Library = "library",
    Listener = "listener",
    NestedTracer = "nested_tracer",
    Setuid = "setuid",
    CoreDump = "core_dump",
    InheritedDescriptor = "inherited_descriptor",
    Timeout = "timeout",
    Survivors = "survivors",
});

#[cfg(test)]
mod tests;
