//! What a row of the table is made of: conditions on registers, operands, and what is special.
//!
//! Neighbours: `table.rs` has the rows, `decode.rs` reads arguments by them, `filter.rs` makes the seccomp
//! program of them.

use smallvec::SmallVec;

use super::args::{Args, Sysno, low};
use super::decoded::{DecodedSyscall, Effect, SocketOperation, Special};
use super::numbers::number;
use super::open_flags::CHANGING;
use crate::trace::memory::{Fault, Memory};

/// One system call.
#[derive(Debug)]
pub struct SyscallRow {
    /// Its number; [`NONE`](super::NONE) if this architecture has no such call.
    pub sysno: Sysno,
    /// Its name in the kernel's table.
    pub name: &'static str,
    /// It matters only if one of these holds; if there are none, always.
    pub when: &'static [Condition],
    /// Whether it matters only where a recording may be recalled.
    pub for_recall: bool,
    /// What its arguments name.
    pub(super) operands: &'static [Operand],
    /// What it means beyond them.
    pub(super) beyond: Beyond,
}

/// A condition on one argument register, as the seccomp program can test it.
///
/// Flags, commands and modes are 32 bits wide in the kernel: the upper half of the register is noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// The lower half has one of the bits of `mask`.
    Has {
        /// The argument's index.
        arg: u8,
        /// The bits.
        mask: u32,
    },
    /// The lower half is `value`.
    Is {
        /// The argument's index.
        arg: u8,
        /// The value.
        value: u32,
    },
    /// The register, a pointer, is not null.
    NotNull {
        /// The argument's index.
        arg: u8,
    },
}

impl Condition {
    /// Whether the condition holds.
    pub fn holds(self, args: &Args) -> bool {
        match self {
            Condition::Has { arg, mask } => low(args, arg) & mask != 0,
            Condition::Is { arg, value } => low(args, arg) == value,
            Condition::NotNull { arg } => args[usize::from(arg)] != 0,
        }
    }
}

/// Whether a syscall is read-only, as far as its registers tell (see [`DecodedSyscall::is_read_only`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOnly {
    /// Always.
    Always,
    /// Unless the lower half of register `arg` has a bit of `mask`.
    Unless {
        /// The index of the open flags.
        arg: u8,
        /// The flags that change something.
        mask: u32,
    },
    /// Never: it may change something, or its result matters, or memory tells which.
    Never,
}

impl SyscallRow {
    /// The registers of its operands that have descriptors.
    pub fn descriptors(&self) -> impl Iterator<Item = u8> {
        self.operands.iter().filter_map(|operand| match operand.named_by {
            NamedBy::Descriptor(register) | NamedBy::At(register, _) => Some(register),
            NamedBy::Path(_) | NamedBy::Address(..) => None,
        })
    }

    /// Whether the syscall with these registers matters at all.
    pub fn applies(&self, args: &Args) -> bool {
        self.when.is_empty() || self.when.iter().any(|condition| condition.holds(args))
    }

    /// Whether the syscall is read-only.
    pub fn read_only(&self) -> ReadOnly {
        if !matches!(self.beyond, Beyond::Nothing | Beyond::Query(_)) {
            return ReadOnly::Never;
        }
        let mut read_only = ReadOnly::Always;
        for operand in self.operands {
            match operand.act {
                Act::Is(Effect::Query | Effect::Stat | Effect::Ask(_))
                | Act::QueryFlags(..)
                | Act::StatMask(_) => {}
                Act::Is(Effect::Open(open)) if open.is_read_only() && !open.without_descriptor => {}
                Act::OpenFlags(arg) => read_only = ReadOnly::Unless { arg, mask: CHANGING },
                _ => return ReadOnly::Never,
            }
        }
        read_only
    }

    /// Whether the syscall opens a path, with flags in a register that tell whether only for reading.
    pub fn is_open(&self) -> bool {
        matches!(self.read_only(), ReadOnly::Unless { .. })
    }

    /// The flags of the syscall, if it opens a path with flags in a register.
    pub fn open_flags(&self, args: &Args) -> Option<u32> {
        match self.read_only() {
            ReadOnly::Unless { arg, .. } => Some(low(args, arg)),
            ReadOnly::Always | ReadOnly::Never => None,
        }
    }

    /// Whether the syscall waits at its entry for a decision that may be a refusal, though it is read-only.
    pub fn may_be_refused(&self, refusable: Refusable) -> bool {
        let may_be = |operand: &Operand| match (operand.named_by, operand.act) {
            (NamedBy::Address(..), _) => refusable.addresses,
            (_, Act::OpenFlags(_) | Act::Is(Effect::Open(_))) => refusable.reads,
            _ => false,
        };
        self.operands.iter().any(may_be) || matches!(self.beyond, Beyond::Query(_)) && refusable.addresses
    }

    /// Where the memory is that decides what the syscall with these registers is about, as far as that may be refused.
    pub fn pinned(&self, args: &Args, refusable: Refusable) -> SmallVec<[Pinned; 2]> {
        let mut pinned = SmallVec::new();
        for operand in self.operands {
            let changes = match operand.act {
                Act::Is(Effect::Query | Effect::Stat | Effect::Ask(_) | Effect::MountPoint)
                | Act::Is(Effect::ChangeDirectory | Effect::ChangeRoot)
                | Act::QueryFlags(..)
                | Act::StatMask(_) => false,
                Act::OpenFlags(arg) => refusable.reads || low(args, arg) & CHANGING != 0,
                Act::Is(Effect::Open(open)) => refusable.reads || !open.is_read_only(),
                _ => true,
            };
            match operand.named_by {
                NamedBy::At(dirfd, path) if let Act::OpenHow(how, size) = operand.act => {
                    pinned.push(Pinned::OpenHow { dirfd, path, how, size });
                }
                NamedBy::Address(_, address, length) if changes || refusable.addresses => {
                    pinned.push(Pinned::Bytes { address, length: low(args, length).into() });
                }
                NamedBy::Path(path) if changes => pinned.push(Pinned::Path { dirfd: None, path }),
                NamedBy::At(dirfd, path) if changes => {
                    pinned.push(Pinned::Path { dirfd: Some(dirfd), path });
                }
                _ => {}
            }
        }
        if self.sysno == super::SENDMSG && refusable.addresses {
            pinned.push(Pinned::Message { address: 1 });
        }
        pinned
    }

    /// Whether the syscall with these registers matters and is read-only.
    pub fn is_read_only(&self, args: &Args) -> bool {
        self.applies(args)
            && match self.read_only() {
                ReadOnly::Always => true,
                ReadOnly::Unless { arg, mask } => !Condition::Has { arg, mask }.holds(args),
                ReadOnly::Never => false,
            }
    }
}

/// Which calls rules may refuse, beside those that change something or execute a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Refusable {
    /// Opens for reading.
    pub reads: bool,
    /// Uses of socket addresses.
    pub addresses: bool,
    /// Whether the kernel may make an open for reading whose arguments nobody can change, though nobody sees when it is
    /// over.
    pub unseen_ends: bool,
}

/// Memory that is copied to where the tree can't change it before a call is judged, by the register that points to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pinned {
    /// A path.
    Path {
        /// The register of the directory descriptor that it is relative to, if there is one.
        dirfd: Option<u8>,
        /// The register of its address.
        path: u8,
    },
    /// This many bytes.
    Bytes {
        /// The register of their address.
        address: u8,
        /// How many the kernel reads.
        length: u64,
    },
    /// A path and a `struct open_how`.
    OpenHow {
        /// The register of the directory descriptor.
        dirfd: u8,
        /// The register of the path's address.
        path: u8,
        /// The register of the structure's address.
        how: u8,
        /// The register of its size.
        size: u8,
    },
    /// A `struct msghdr`, with the socket address that it points to.
    Message {
        /// The register of its address.
        address: u8,
    },
}

/// A file or name among the arguments, and what the syscall does to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operand {
    pub named_by: NamedBy,
    pub act: Act,
    pub follow: Follow,
    pub empty: Empty,
    pub null: Null,
}

/// The arguments that name it.
#[derive(Debug, Clone, Copy)]
pub(super) enum NamedBy {
    /// A path from the working directory.
    Path(u8),
    /// A directory descriptor and a path.
    At(u8, u8),
    /// A descriptor.
    Descriptor(u8),
    /// A socket address and its length, and what is done with it; an AF_UNIX one may have a path.
    Address(SocketOperation, u8, u8),
}

/// What is done to it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Act {
    /// This.
    Is(Effect),
    /// An open; the flags are in this register.
    OpenFlags(u8),
    /// An open; `struct open_how` is at this address, its size in that register.
    OpenHow(u8, u8),
    /// A removal; AT_REMOVEDIR may be in this register.
    RemoveFlags(u8),
    /// The old name of a rename; its flags are in this register.
    RenameFromFlags(u8),
    /// The new name of a rename; its flags are in this register.
    RenameToFlags(u8),
    /// A query; with the flag in this register, of a directory only, as by O_PATH with O_DIRECTORY.
    QueryFlags(u8, u32),
    /// The stat family; the mask of statx is in this register.
    StatMask(u8),
    /// Execution; with AT_EXECVE_CHECK (Linux 6.14) in this register, a query.
    ExecuteFlags(u8),
}

/// Whether a symlink as the last component is followed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Follow {
    Always,
    Never,
    /// Unless the register has the flag.
    Unless(u8, u32),
    /// If the register has the flag.
    If(u8, u32),
}

/// What an empty path means.
#[derive(Debug, Clone, Copy)]
pub(super) enum Empty {
    /// ENOENT.
    Refused,
    /// The descriptor itself, a symlink opened with O_PATH; ENOENT with AT_FDCWD (readlinkat).
    Symlink,
    /// If the register has the flag, the descriptor itself, else ENOENT.
    ItselfIf(u8, u32),
}

/// What a null pointer means as a path.
#[derive(Debug, Clone, Copy)]
pub(super) enum Null {
    /// EFAULT.
    Fault,
    /// Nothing is named, or a descriptor that is only queried.
    Nothing,
    /// The descriptor itself; EFAULT with AT_FDCWD.
    Descriptor,
    /// The same as an empty path where that names the descriptor (statx and newfstatat since Linux 6.11).
    Empty,
}

/// Decodes what operands can't express, and adds it to what they did.
pub(super) type Custom = fn(&Args, &dyn Memory, &mut DecodedSyscall) -> Result<(), Fault>;

/// What a syscall means beyond its operands.
#[derive(Debug, Clone, Copy)]
pub(super) enum Beyond {
    Nothing,
    Special(Special),
    /// The argument list is at this address.
    Argv(u8),
    /// What this function makes of it.
    Custom(Custom),
    /// The same, and whatever it makes of it is read-only.
    Query(Custom),
}

pub(super) const fn row(name: &'static str, operands: &'static [Operand]) -> SyscallRow {
    SyscallRow {
        sysno: Sysno(number(name)),
        name,
        when: &[],
        for_recall: false,
        operands,
        beyond: Beyond::Nothing,
    }
}

impl SyscallRow {
    pub(super) const fn when(mut self, tests: &'static [Condition]) -> SyscallRow {
        self.when = tests;
        self
    }

    pub(super) const fn for_recall(mut self) -> SyscallRow {
        self.for_recall = true;
        self
    }

    pub(super) const fn special(mut self, special: Special) -> SyscallRow {
        self.beyond = Beyond::Special(special);
        self
    }

    pub(super) const fn argv(mut self, address: u8) -> SyscallRow {
        self.beyond = Beyond::Argv(address);
        self
    }

    pub(super) const fn custom(mut self, custom: Custom) -> SyscallRow {
        self.beyond = Beyond::Custom(custom);
        self
    }

    pub(super) const fn query(mut self, custom: Custom) -> SyscallRow {
        self.beyond = Beyond::Query(custom);
        self
    }
}

const fn operand(named_by: NamedBy) -> Operand {
    Operand {
        named_by,
        act: Act::Is(Effect::Query),
        follow: Follow::Always,
        empty: Empty::Refused,
        null: Null::Fault,
    }
}

/// The path at register `path`, from the working directory.
pub(super) const fn path(path: u8) -> Operand {
    operand(NamedBy::Path(path))
}

/// The path at register `path`, from the directory at register `dirfd`.
pub(super) const fn at(dirfd: u8, path: u8) -> Operand {
    operand(NamedBy::At(dirfd, path))
}

/// The descriptor in register `fd`.
pub(super) const fn fd(fd: u8) -> Operand {
    operand(NamedBy::Descriptor(fd))
}

/// The socket address at register `address`, and its path if it is of AF_UNIX.
pub(super) const fn address(operation: SocketOperation, address: u8, len: u8) -> Operand {
    operand(NamedBy::Address(operation, address, len))
}

impl Operand {
    /// The registers that it reads.
    #[cfg(test)]
    pub(super) fn registers(&self) -> Vec<u8> {
        let mut registers = match self.named_by {
            NamedBy::Path(arg) | NamedBy::Descriptor(arg) => vec![arg],
            NamedBy::At(first, second) | NamedBy::Address(_, first, second) => vec![first, second],
        };
        registers.extend(match self.act {
            Act::Is(_) => vec![],
            Act::OpenHow(how, size) => vec![how, size],
            Act::OpenFlags(arg)
            | Act::RemoveFlags(arg)
            | Act::RenameFromFlags(arg)
            | Act::RenameToFlags(arg)
            | Act::QueryFlags(arg, _)
            | Act::StatMask(arg)
            | Act::ExecuteFlags(arg) => vec![arg],
        });
        if let Follow::Unless(arg, _) | Follow::If(arg, _) = self.follow {
            registers.push(arg);
        }
        if let Empty::ItselfIf(arg, _) = self.empty {
            registers.push(arg);
        }
        registers
    }

    pub const fn does(mut self, effect: Effect) -> Operand {
        self.act = Act::Is(effect);
        self
    }

    pub const fn act(mut self, act: Act) -> Operand {
        self.act = act;
        self
    }

    pub const fn nofollow(mut self) -> Operand {
        self.follow = Follow::Never;
        self
    }

    pub const fn nofollow_if(mut self, arg: u8, flag: u32) -> Operand {
        self.follow = Follow::Unless(arg, flag);
        self
    }

    pub const fn follow_if(mut self, arg: u8, flag: u32) -> Operand {
        self.follow = Follow::If(arg, flag);
        self
    }

    pub const fn empty_if(mut self, arg: u8, flag: u32) -> Operand {
        self.empty = Empty::ItselfIf(arg, flag);
        self
    }

    pub const fn may_be_symlink(mut self) -> Operand {
        self.empty = Empty::Symlink;
        self
    }

    pub const fn null(mut self, null: Null) -> Operand {
        self.null = null;
        self
    }

    /// AT_SYMLINK_NOFOLLOW and AT_EMPTY_PATH are in register `arg`.
    pub const fn at_flags(self, arg: u8) -> Operand {
        const NOFOLLOW: u32 = libc::AT_SYMLINK_NOFOLLOW.unsigned_abs();
        self.nofollow_if(arg, NOFOLLOW).empty_if(arg, libc::AT_EMPTY_PATH.unsigned_abs())
    }
}
