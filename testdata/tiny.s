# A program without a libc: makes a file and exits with 42.
    .globl _start
    .section .rodata
name:
    .asciz "made"
    .text
_start:
    mov $2, %eax            # open(name, O_CREAT | O_WRONLY, 0600)
    lea name(%rip), %rdi
    mov $0101, %esi
    mov $0600, %edx
    syscall
    mov %eax, %edi
    mov $1, %eax            # write(fd, name, 4)
    lea name(%rip), %rsi
    mov $4, %edx
    syscall
    mov $39, %eax           # getpid()
    syscall
    mov $231, %eax          # exit_group(42)
    mov $42, %edi
    syscall
