//! Code for x86_64 by which a process notes its own calls; `trace/inside.rs` says what it is for.
//!
//! The code uses no stack, and what it saves lies in the block. Before a signal is delivered, the tracer has the thread
//! leave the code ([`leave`]), so that it never runs twice at once.

use super::{Registers, user_regs_struct};
use crate::trace::inside::{Left, layout};
use crate::trace::syscalls::PLAIN_OPEN;

/// The bytes of the code, which lies at the beginning of the block.
pub fn code() -> &'static [u8] {
    // SAFETY: the symbols delimit the bytes that are assembled below, which nobody writes to.
    unsafe {
        let (begin, end) = (&raw const inside_begin, &raw const inside_end);
        std::slice::from_raw_parts(begin, end.offset_from_unsigned(begin))
    }
}

unsafe extern "C" {
    static inside_begin: u8;
    static inside_common: u8;
    static inside_asked: u8;
    static inside_saved: u8;
    static inside_unnoted: u8;
    static inside_after: u8;
    static inside_returning: u8;
    static inside_opened: u8;
    static inside_end: u8;
}

/// How long the thunk of a call site is.
pub const THUNK: u64 = 32;

/// Calls whose path is their second argument, behind a descriptor.
const AT: u32 = 1;
/// Calls that open.
const OPENS: u32 = 2;
/// Calls of which nothing is recorded if their path is empty.
const ASKS: u32 = 4;

/// The calls that can be noted, by their names and traits.
const CALLS: [(&str, u32); 11] = [
    ("access", 0),
    ("faccessat", AT),
    ("faccessat2", AT),
    ("lstat", 0),
    ("newfstatat", AT | ASKS),
    ("open", OPENS),
    ("openat", AT | OPENS),
    ("readlink", 0),
    ("readlinkat", AT),
    ("stat", 0),
    ("statx", AT | ASKS),
];

/// The names of the calls that can be noted.
pub fn calls() -> impl Iterator<Item = &'static str> {
    CALLS.iter().map(|(name, _)| *name)
}

/// How long a call site is: `mov $number, %eax; syscall`.
pub const SITE: usize = 7;

/// The bytes of a call site.
pub fn site(number: u32) -> [u8; SITE] {
    let [a, b, c, d] = number.to_le_bytes();
    [0xb8, a, b, c, d, 0x0f, 0x05]
}

/// What makes a call site with these bytes, which ends at `end`, begin with a jump to `thunk`: its first bytes. The
/// instruction that makes the call stays. None if the bytes are others, or too far away.
pub fn jump(bytes: [u8; SITE], number: u32, end: u64, thunk: u64) -> Option<[u8; 5]> {
    let after = end - 2;
    let distance = i32::try_from(thunk.wrapping_sub(after).cast_signed()).ok()?;
    let [a, b, c, d] = distance.to_le_bytes();
    (bytes == site(number)).then_some([0xe9, a, b, c, d])
}

/// The thunk at an address for the call site that ends at `end`: it loads where to return to, the number of the call and
/// its traits. None if they are too far apart.
pub fn thunk(block: u64, at: u64, end: u64, name: &str, number: u32) -> Option<Vec<u8>> {
    let (_, traits) = CALLS.iter().find(|(known, _)| *known == name)?;
    let distance = |to: u64, after: u64| i32::try_from(to.wrapping_sub(after).cast_signed()).ok();
    let mut bytes = vec![0x48, 0x8d, 0x0d]; // lea distance(%rip), %rcx
    bytes.extend(distance(end, at + 7)?.to_le_bytes());
    bytes.push(0xb8); // mov $number, %eax
    bytes.extend(number.to_le_bytes());
    bytes.extend([0x41, 0xbb]); // mov $traits, %r11d
    bytes.extend(traits.to_le_bytes());
    bytes.push(0xe9); // jmp inside_common
    bytes.extend(distance(block + offset_of(&raw const inside_common), at + 23)?.to_le_bytes());
    Some(bytes)
}

fn offset_of(symbol: *const u8) -> u64 {
    // SAFETY: both lie in the bytes that are assembled below.
    unsafe { symbol.offset_from_unsigned(&raw const inside_begin) as u64 }
}

/// Has a thread leave the code for its call site. `data` is what the code has saved, `thunk` the end and the number of the call
/// site in whose thunk it is.
pub fn leave(registers: &Registers, block: u64, data: &[u64; 9], thunk: Option<(u64, u32)>) -> Left {
    const SYSCALL: u64 = 2;
    const CARRY: u64 = 1;
    let mut left = *registers;
    let at: &mut user_regs_struct = &mut left.0;
    let offset = at.rip - block;
    let [asked, saved, unnoted] =
        [&raw const inside_asked, &raw const inside_saved, &raw const inside_unnoted].map(offset_of);
    let [after, returning, opened] =
        [&raw const inside_after, &raw const inside_returning, &raw const inside_opened].map(offset_of);
    let had_block = thunk.is_none()
        && match offset {
            _ if offset == asked => at.eflags & CARRY == 0,
            _ => offset > asked && offset != unnoted && offset != returning,
        };
    let [rdi, rsi, rdx, r8, r9, r10, end, number, result] = *data;
    if let Some((end, number)) = thunk {
        (at.rip, at.rax) = (end - SYSCALL, number.into());
    } else if offset < saved || offset == unnoted {
        at.rip = at.rcx - SYSCALL;
    } else if offset == returning {
        at.rip = at.rcx;
    } else {
        [at.rdi, at.rsi, at.rdx, at.r8, at.r9, at.r10] = [rdi, rsi, rdx, r8, r9, r10];
        if offset < after || offset == opened - SYSCALL {
            (at.rip, at.rax) = (end - SYSCALL, number);
        } else {
            at.rip = end;
            // The kernel may be about to make it again.
            if offset <= opened {
                return Left { registers: left, had_block };
            }
            at.rax = result;
        }
    }
    // Not in a system call that the kernel would restart.
    at.orig_rax = u64::MAX;
    Left { registers: left, had_block }
}

std::arch::global_asm!(
    ".pushsection .rodata.inside, \"a\"",
    // The inode number, device and mount of the directory in edi: statx(edi, "", AT_EMPTY_PATH, STATX_INO | STATX_MNT_ID, data).
    ".macro inside_identify",
    "lea rsi, [rip + inside_begin + {empty}]",
    "mov edx, 0x1000",
    "mov r10d, 0x1100",
    "lea r8, [rip + inside_begin + {statx}]",
    "mov r9, [rip + inside_begin + {mark}]",
    "mov eax, 332",
    "syscall",
    ".endm",
    // r9: the number of the next note; the flags say whether the ring is full.
    ".macro inside_next_note",
    "mov r9, [rip + inside_begin + {head}]",
    "mov rax, r9",
    "sub rax, [rip + inside_begin + {tail}]",
    "cmp rax, {slots}",
    ".endm",
    // rdx: the slot of that note.
    ".macro inside_slot",
    "mov eax, r9d",
    "and eax, {slots} - 1",
    "shl eax, 8",
    "lea rdx, [rip + inside_begin + {first_slot}]",
    "add rdx, rax",
    ".endm",
    ".macro inside_restore",
    "mov rdi, [rip + inside_begin + {saved}]",
    "mov rsi, [rip + inside_begin + {saved} + 8]",
    "mov rdx, [rip + inside_begin + {saved} + 16]",
    "mov r8, [rip + inside_begin + {saved} + 24]",
    "mov r9, [rip + inside_begin + {saved} + 32]",
    "mov r10, [rip + inside_begin + {saved} + 40]",
    ".endm",
    ".globl inside_begin",
    ".globl inside_common",
    ".globl inside_asked",
    ".globl inside_saved",
    ".globl inside_unnoted",
    ".globl inside_after",
    ".globl inside_returning",
    ".globl inside_opened",
    ".globl inside_end",
    "inside_begin:",
    // The call is made as if nobody noted it.
    "70:",
    "lea r11, [rcx - 2]",
    "jmp r11",
    // rcx: the end of the call site; eax: the number; r11d: the traits.
    "inside_common:",
    "cmp dword ptr [rip + inside_begin + {active}], 0",
    "je 70b",
    "cmp dword ptr [rip + inside_begin + {open}], 0",
    "je 70b",
    // One thread at a time has the block; what others call meanwhile is made as if nobody noted it.
    "lock bts dword ptr [rip + inside_begin + {busy}], 0",
    "inside_asked:",
    "jc 70b",
    "mov [rip + inside_begin + {saved}], rdi",
    "mov [rip + inside_begin + {saved} + 8], rsi",
    "mov [rip + inside_begin + {saved} + 16], rdx",
    "mov [rip + inside_begin + {saved} + 24], r8",
    "mov [rip + inside_begin + {saved} + 32], r9",
    "mov [rip + inside_begin + {saved} + 40], r10",
    "mov [rip + inside_begin + {saved} + 48], rcx",
    "mov [rip + inside_begin + {saved} + 56], rax",
    "inside_saved:",
    // r8: the path; r9d: the flags of an open.
    "mov r8, rdi",
    "mov r9, rsi",
    "test r11d, {at}",
    "jz 10f",
    "mov r8, rsi",
    "mov r9, rdx",
    "10:",
    "test r11d, {opens}",
    "jz 11f",
    "cmp dword ptr [rip + inside_begin + {open}], {all_calls}",
    "jne 60f",
    "test r9d, {not_plain}",
    "jnz 60f",
    "11:",
    // r10d: where the path starts.
    "xor r10d, r10d",
    "movzx eax, byte ptr [r8]",
    "cmp al, 47",
    "je 20f",
    "test al, al",
    "jnz 14f",
    "test r11d, {asks}",
    "jz 60f",
    "jmp 40f",
    "14:",
    "mov r10d, {cwd}",
    "test r11d, {at}",
    "jz 12f",
    "cmp edi, -100",
    "jne 13f",
    "12:",
    "cmp dword ptr [rip + inside_begin + {knows_cwd}], 0",
    "je 60f",
    "mov eax, [rip + inside_begin + {knows_cwd} + 4]",
    "mov [rip + inside_begin + {scratch} + 16], rax",
    "mov rax, [rip + inside_begin + {cwd_mount}]",
    "mov [rip + inside_begin + {scratch} + 24], rax",
    "jmp 20f",
    "13:",
    // Is it a directory that is known?
    "mov [rip + inside_begin + {scratch}], r8",
    "mov [rip + inside_begin + {scratch} + 8], r11",
    "mov edi, edi",
    "inside_identify",
    "test eax, eax",
    "jnz 60f",
    "mov rax, [rip + inside_begin + {statx} + 0x20]",
    "mov r9d, eax",
    "and r9d, {most_known} - 1",
    "shl r9d, 5",
    "lea rdx, [rip + inside_begin + {known}]",
    "add r9, rdx",
    "cmp rax, [r9]",
    "jne 60f",
    "mov rax, [rip + inside_begin + {statx} + 0x88]",
    "cmp rax, [r9 + 8]",
    "jne 60f",
    "mov rax, [rip + inside_begin + {statx} + 0x90]",
    "cmp rax, [r9 + 16]",
    "jne 60f",
    "mov r10d, [r9 + 24]",
    "test r10d, r10d",
    "jz 60f",
    "mov eax, [r9 + 28]",
    "mov [rip + inside_begin + {scratch} + 16], rax",
    "mov rax, [r9 + 16]",
    "mov [rip + inside_begin + {scratch} + 24], rax",
    "mov r8, [rip + inside_begin + {scratch}]",
    "mov r11, [rip + inside_begin + {scratch} + 8]",
    "20:",
    // r9: the number of the note; rdx: its slot.
    "inside_next_note",
    "jae 60f",
    // From time to time a call is made unnoted, so that the notes are read meanwhile.
    "cmp r9, [rip + inside_begin + {nudge}]",
    "jne 21f",
    "add qword ptr [rip + inside_begin + {nudge}], {slots} / 2",
    "jmp 60f",
    "21:",
    "inside_slot",
    "xor ecx, ecx",
    "22:",
    "movzx eax, byte ptr [r8 + rcx]",
    "mov [rdx + rcx + 64], al",
    "test al, al",
    "jz 23f",
    "inc ecx",
    "cmp ecx, {longest}",
    "jbe 22b",
    "jmp 60f",
    "23:",
    "mov qword ptr [rdx + rcx + 64], 0",
    // What is below /proc and /dev may be another thing to each process.
    "cmp dword ptr [rdx + 64], 0x6f72702f",
    "je 60f",
    "cmp dword ptr [rdx + 64], 0x7665642f",
    "je 60f",
    "mov rax, [rip + inside_begin + {saved} + 56]",
    "mov [rdx], eax",
    "mov [rdx + 4], r10d",
    "mov rsi, [rip + inside_begin + {saved}]",
    "mov [rdx + 8], rsi",
    "mov rsi, [rip + inside_begin + {saved} + 8]",
    "mov [rdx + 16], rsi",
    "mov rsi, [rip + inside_begin + {saved} + 16]",
    "mov [rdx + 24], rsi",
    "mov rdi, [rip + inside_begin + {saved} + 40]",
    "mov [rdx + 32], rdi",
    "mov r8, [rip + inside_begin + {saved} + 24]",
    "mov [rdx + 40], r8",
    "mov [rdx + 48], rcx",
    // An open may find what another one has not.
    "xor eax, eax",
    "mov [rdx + 56], rax",
    "test r11d, {opens}",
    "jnz 30f",
    // rsi: a digest of the call; one that is as another that was read since the last change is not noted again.
    "movabs r8, 0x9e3779b97f4a7c15",
    "mov eax, [rdx]",
    "xor rax, [rip + inside_begin + {generation}]",
    "imul rax, r8",
    "xor rax, r10",
    "imul rax, r8",
    "test r11d, {at}",
    "jz 24f",
    "xor rax, rsi",
    "imul rax, r8",
    "xor rax, rdi",
    "imul rax, r8",
    "24:",
    "mov rsi, rax",
    "xor eax, eax",
    "25:",
    "xor rsi, [rdx + rax + 64]",
    "imul rsi, r8",
    "mov rdi, rsi",
    "shr rdi, 32",
    "xor rsi, rdi",
    "add eax, 8",
    "cmp eax, ecx",
    "jbe 25b",
    "mov eax, esi",
    "and eax, {noted} - 1",
    "lea rdi, [rip + inside_begin + {first_noted}]",
    "cmp [rdi + rax * 8], rsi",
    "je 40f",
    "mov [rdx + 56], rsi",
    "30:",
    "inc r9",
    "mov [rip + inside_begin + {head}], r9",
    "mov [rip + inside_begin + {scratch}], rdx",
    "40:",
    "inc qword ptr [rip + inside_begin + {calls}]",
    "inside_restore",
    "mov r9, [rip + inside_begin + {mark}]",
    "mov rax, [rip + inside_begin + {saved} + 56]",
    // Relative to what is opened, other paths may follow.
    "and r11d, {at} | {opens}",
    "cmp r11d, {at} | {opens}",
    "jne 50f",
    "mov ecx, edx",
    "and ecx, {walks}",
    "cmp ecx, {walks}",
    "je 51f",
    "jmp 50f",
    // It is not noted: the call is made where it stands.
    "60:",
    "inside_restore",
    "mov rcx, [rip + inside_begin + {saved} + 48]",
    "mov rax, [rip + inside_begin + {saved} + 56]",
    "mov dword ptr [rip + inside_begin + {busy}], 0",
    "inside_unnoted:",
    "jmp 70b",
    "50:",
    "syscall",
    "inside_after:",
    "mov r9, [rip + inside_begin + {saved} + 32]",
    "mov rcx, [rip + inside_begin + {saved} + 48]",
    "mov dword ptr [rip + inside_begin + {busy}], 0",
    "inside_returning:",
    "jmp rcx",
    "51:",
    "syscall",
    "inside_opened:",
    "mov [rip + inside_begin + {result}], rax",
    "test eax, eax",
    "js 59f",
    // rsi: the slot of the note. A name alone, relative to what is known; rcx: its length.
    "mov rsi, [rip + inside_begin + {scratch}]",
    "cmp dword ptr [rsi + 4], 0",
    "je 59f",
    "mov rcx, [rsi + 48]",
    "mov rdx, [rip + inside_begin + {scratch} + 16]",
    "lea rdx, [rdx + rcx + 1]",
    "cmp rdx, {longest_start}",
    "ja 59f",
    "mov [rip + inside_begin + {scratch} + 16], rdx",
    "cmp byte ptr [rsi + 64], 46",
    "jne 52f",
    "cmp ecx, 2",
    "jbe 59f",
    "52:",
    "cmp byte ptr [rsi + rcx + 63], 47",
    "je 59f",
    "dec ecx",
    "jnz 52b",
    "mov edi, eax",
    "inside_identify",
    "test eax, eax",
    "jnz 59f",
    // What is mounted there may be a procfs.
    "mov rax, [rip + inside_begin + {statx} + 0x90]",
    "cmp rax, [rip + inside_begin + {scratch} + 24]",
    "jne 59f",
    "inside_next_note",
    "jae 59f",
    "cmp r9, [rip + inside_begin + {nudge}]",
    "je 59f",
    "inside_slot",
    "mov rsi, [rip + inside_begin + {scratch}]",
    "mov dword ptr [rdx], -1",
    "mov eax, [rsi + 4]",
    "mov [rdx + 4], eax",
    "mov rcx, [rsi + 48]",
    "mov [rdx + 48], rcx",
    "xor eax, eax",
    "53:",
    "mov rdi, [rsi + rax + 64]",
    "mov [rdx + rax + 64], rdi",
    "add eax, 8",
    "cmp eax, ecx",
    "jb 53b",
    "mov rax, [rip + inside_begin + {statx} + 0x20]",
    "mov rcx, [rip + inside_begin + {statx} + 0x88]",
    "mov rdi, [rip + inside_begin + {statx} + 0x90]",
    "mov r8d, r9d",
    "or r8d, {named}",
    "mov [rdx + 8], rax",
    "mov [rdx + 16], rcx",
    "mov [rdx + 24], rdi",
    "mov [rdx + 32], r8",
    "inc r9",
    "mov [rip + inside_begin + {head}], r9",
    "mov edx, eax",
    "and edx, {most_known} - 1",
    "shl edx, 5",
    "lea rsi, [rip + inside_begin + {known}]",
    "add rdx, rsi",
    "mov qword ptr [rdx + 24], 0",
    "mov [rdx], rax",
    "mov [rdx + 8], rcx",
    "mov [rdx + 16], rdi",
    "mov rax, [rip + inside_begin + {scratch} + 16]",
    "shl rax, 32",
    "or rax, r8",
    "mov [rdx + 24], rax",
    "59:",
    "inside_restore",
    "mov rax, [rip + inside_begin + {result}]",
    "jmp inside_after",
    "inside_end:",
    ".purgem inside_identify",
    ".purgem inside_next_note",
    ".purgem inside_slot",
    ".purgem inside_restore",
    ".popsection",
    at = const AT,
    opens = const OPENS,
    not_plain = const !PLAIN_OPEN,
    active = const layout::ACTIVE,
    open = const layout::OPEN,
    all_calls = const layout::ALL_CALLS,
    busy = const layout::BUSY,
    calls = const layout::CALLS,
    saved = const layout::SAVED,
    cwd = const layout::CWD,
    cwd_mount = const layout::CWD_MOUNT,
    knows_cwd = const layout::KNOWS_CWD,
    named = const layout::NAMED,
    result = const layout::RESULT,
    asks = const ASKS,
    longest_start = const layout::LONGEST_START,
    walks = const libc::O_DIRECTORY | libc::O_NOFOLLOW,
    known = const layout::KNOWN,
    most_known = const layout::MOST_KNOWN,
    scratch = const layout::SCRATCH,
    empty = const layout::EMPTY,
    statx = const layout::STATX,
    mark = const layout::MARK,
    head = const layout::HEAD,
    tail = const layout::TAIL,
    nudge = const layout::NUDGE,
    slots = const layout::SLOTS,
    first_slot = const layout::FIRST_SLOT,
    longest = const layout::LONGEST,
    generation = const layout::GENERATION,
    noted = const layout::NOTED,
    first_noted = const layout::FIRST_NOTED,
);
