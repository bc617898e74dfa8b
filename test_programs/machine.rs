//! Machine instructions of each architecture.

#![allow(dead_code, reason = "each program uses its part")]

use std::arch::asm;

use libc::{c_int, c_long, ucontext_t};

#[cfg(target_arch = "x86_64")]
mod native {
    use super::*;

    /// A breakpoint, behind which its handler returns.
    pub fn breakpoint() {
        // SAFETY: changes nothing.
        unsafe { asm!("int3") };
    }

    pub fn handled_breakpoint() {
        breakpoint();
    }

    pub fn invalid() {
        // SAFETY: whoever calls this dies, or skips it in a handler.
        unsafe { asm!("ud2") };
    }

    /// A read of an address that nothing is mapped at.
    pub fn fault() {
        // SAFETY: whoever calls this dies, or skips it in a handler.
        unsafe { asm!("mov al, byte ptr [rcx]", in("rcx") 8usize, out("al") _) };
    }

    pub fn division() {
        // SAFETY: whoever calls this dies, or skips it in a handler.
        unsafe {
            asm!("xor edx, edx", "xor ecx, ecx", "div ecx", out("eax") _, out("ecx") _, out("edx") _);
        }
    }

    /// Skips one of the instructions above: each of them has two bytes.
    pub fn skip_instruction(context: &mut ucontext_t) {
        context.uc_mcontext.gregs[libc::REG_RIP as usize] += 2;
    }

    /// Runs a few instructions with the trap flag.
    pub fn single_steps() {
        // SAFETY: the flag is cleared in the same breath.
        unsafe {
            asm!(
                "pushfq",
                "or qword ptr [rsp], 0x100",
                "popfq",
                "nop",
                "nop",
                "pushfq",
                "and qword ptr [rsp], ~0x100",
                "popfq",
                "nop"
            );
        }
    }

    /// clone(2) with nothing but flags: what it returns, and the register of the flags after it.
    pub fn clone(flags: c_int) -> (c_long, u64) {
        let mut first = u64::from(flags.unsigned_abs());
        let mut answer = libc::SYS_clone;
        // SAFETY: the child has its own memory.
        unsafe {
            asm!(
                "syscall", inout("rax") answer, inout("rdi") first,
                in("rsi") 0, in("rdx") 0, in("r10") 0, in("r8") 0, out("rcx") _, out("r11") _,
            );
        }
        (answer, first)
    }

    /// A call of a 32-bit program. A kernel without them sends SIGSEGV.
    pub fn compat(number: c_int, words: [u32; 3]) -> c_int {
        let [first, second, third] = words;
        let mut answer = number;
        // SAFETY: as of the call.
        unsafe {
            asm!(
                "push rbx", "mov ebx, {first:e}", "int 0x80", "pop rbx",
                first = in(reg) first,
                inout("eax") answer, in("ecx") second, in("edx") third,
                out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            );
        }
        answer
    }
}

#[cfg(target_arch = "aarch64")]
mod native {
    use super::*;

    /// A breakpoint; who returns from its handler is there again.
    pub fn breakpoint() {
        // SAFETY: changes nothing.
        unsafe { asm!("brk #0") };
    }

    pub fn handled_breakpoint() {}

    pub fn invalid() {
        // SAFETY: whoever calls this dies, or skips it in a handler.
        unsafe { asm!("udf #0") };
    }

    /// A read of an address that nothing is mapped at.
    pub fn fault() {
        // SAFETY: whoever calls this dies, or skips it in a handler.
        unsafe { asm!("ldrb w9, [x10]", in("x10") 8usize, out("x9") _) };
    }

    /// Gives zero here.
    pub fn division() {}

    /// Skips one of the instructions above.
    pub fn skip_instruction(context: &mut ucontext_t) {
        context.uc_mcontext.pc += 4;
    }

    /// A program can't do it to itself here.
    pub fn single_steps() {}

    /// clone(2) with nothing but flags: what it returns, which is in the register of the flags.
    pub fn clone(flags: c_int) -> (c_long, u64) {
        let mut first = c_long::from(flags);
        // SAFETY: the child has its own memory.
        unsafe {
            asm!(
                "svc #0", in("x8") libc::SYS_clone, inout("x0") first,
                in("x1") 0, in("x2") 0, in("x3") 0, in("x4") 0,
            );
        }
        (first, u64::from(flags.unsigned_abs()))
    }

    /// A program can't make a call of 32 bits here.
    pub fn compat(_: c_int, _: [u32; 3]) -> c_int {
        -libc::ENOSYS
    }
}

pub use native::*;
