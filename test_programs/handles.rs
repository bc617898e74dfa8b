//! name_to_handle_at, open_by_handle_at, pidfd_getfd: files that a call does not name.

mod support;

use std::ffi::CStr;

use support::legacy::*;
use support::{CWD, Case, NOWHERE, case, dir, fails, fd, file, ok, path_only, refused, symlink};

/// struct file_handle with space for any handle.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; 128],
}

fn handle(dirfd: c_int, path: &CStr, flags: c_int) -> Handle {
    let mut handle = Handle { bytes: 128, kind: 0, handle: [0; 128] };
    let mut mount = 0;
    ok(sys!(SYS_name_to_handle_at, dirfd, path, &raw mut handle, &raw mut mount, flags));
    handle
}

fn open(handle: &Handle, flags: c_int) -> c_int {
    fd(sys!(SYS_open_by_handle_at, CWD, std::ptr::from_ref(handle), flags))
}

const HANDLES: &[Case] = &[
    case("takes_handles", &["name_to_handle_at"])
        .given(|| {
            dir("d");
            ["d/a", "b", "f"].into_iter().for_each(file);
            symlink("b", "l");
            symlink("f", "m");
        })
        .when(|| {
            handle(path_only(c"d"), c"a", 0);
            handle(CWD, c"l", AT_SYMLINK_FOLLOW);
            handle(CWD, c"m", 0);
        })
        .then(
            "b | existence | file | file
             d | existence | directory | directory
             d/a | existence | file | file
             l | existence | symlink | symlink
             m | existence | symlink | symlink",
        ),
    case("takes_no_handle", &["name_to_handle_at"])
        .when(|| {
            let mut handle = Handle { bytes: 128, kind: 0, handle: [0; 128] };
            let (handle, mut mount) = (&raw mut handle, 0);
            fails(ENOENT, sys!(SYS_name_to_handle_at, CWD, c"x", handle, &raw mut mount, 0));
            fails(ENOENT, sys!(SYS_name_to_handle_at, CWD, c"", handle, &raw mut mount, 0));
        })
        .then("x | existence | absent | absent"),
    case("takes_the_handle_of_a_descriptor", &["name_to_handle_at"])
        .given(|| file("f"))
        .when(|| {
            handle(fd(sys!(SYS_open, c"f", O_RDONLY)), c"", AT_EMPTY_PATH);
        })
        .then("f | read | file | file"),
    case("opens_handles", &["name_to_handle_at", "open_by_handle_at"])
        .only_root()
        .given(|| {
            dir("d");
            ["a", "b"].into_iter().for_each(file);
        })
        .when(|| {
            open(&handle(CWD, c"a", 0), O_RDONLY);
            let b = open(&handle(CWD, c"b", 0), O_WRONLY);
            ok(sys!(SYS_write, b, c"x", 1));
            open(&handle(CWD, c"d", 0), O_RDONLY | O_DIRECTORY);
        })
        .then(
            "a | read,existence | file | file
             b | write,existence | file | file
             d | existence,directory | directory | directory",
        ),
    case("opens_no_handle", &["open_by_handle_at"]).when(|| {
        let handle = Handle { bytes: 8, kind: 1, handle: [0xff; 128] };
        refused(sys!(SYS_open_by_handle_at, CWD, &raw const handle, O_RDONLY));
    }),
];

const TAKEN: &[Case] = &[case("takes_the_descriptor_of_a_process", &["pidfd_getfd"])
    .given(|| file("f"))
    .when(|| {
        let f = fd(sys!(SYS_open, c"f", O_RDONLY));
        let process = fd(sys!(SYS_pidfd_open, ok(sys!(SYS_getpid)), 0));
        ok(sys!(SYS_pidfd_getfd, process, f, 0));
        fails(EBADF, sys!(SYS_pidfd_getfd, process, 12345, 0));
    })
    .then("f | read | file | file")];

/// A message with room for one descriptor.
#[repr(C)]
struct Message {
    header: msghdr,
    part: iovec,
    byte: u8,
    control: [u64; 3],
}

impl Message {
    fn new() -> Box<Message> {
        let none = std::ptr::null_mut();
        let header = msghdr {
            msg_name: none,
            msg_namelen: 0,
            msg_iov: std::ptr::null_mut(),
            msg_iovlen: 1,
            msg_control: none,
            msg_controllen: 24,
            msg_flags: 0,
        };
        let mut message = Box::new(Message {
            header,
            part: iovec { iov_base: none, iov_len: 1 },
            byte: 0,
            control: [0; 3],
        });
        message.part.iov_base = (&raw mut message.byte).cast();
        message.header.msg_iov = &raw mut message.part;
        message.header.msg_control = message.control.as_mut_ptr().cast();
        message
    }

    fn with(fd: c_int) -> Box<Message> {
        let mut message = Message::new();
        let rights = u64::from(SCM_RIGHTS.unsigned_abs()) << 32 | u64::from(SOL_SOCKET.unsigned_abs());
        message.control = [20, rights, u64::from(fd.unsigned_abs())];
        message
    }
}

fn socket_pair() -> [c_int; 2] {
    let mut pair = [0; 2];
    ok(sys!(SYS_socketpair, AF_UNIX, SOCK_DGRAM, 0, pair.as_mut_ptr()));
    pair
}

const RECEIVED: &[Case] = &[
    case("receives_a_descriptor", &["recvmsg"])
        .given(|| ["f", "g"].into_iter().for_each(file))
        .when(|| {
            let [to, from] = socket_pair();
            let f = fd(sys!(SYS_open, c"f", O_RDONLY));
            ok(sys!(SYS_sendmsg, to, &raw const Message::with(f).header, 0));
            ok(sys!(SYS_recvmsg, from, &raw mut Message::new().header, 0));
            fails(EAGAIN, sys!(SYS_recvmsg, from, &raw mut Message::new().header, MSG_DONTWAIT));
            fails(EFAULT, sys!(SYS_recvmsg, from, NOWHERE, 0));
        })
        .then("f | read | file | file"),
    case("receives_many_messages", &["recvmmsg"])
        .given(|| ["f", "g"].into_iter().for_each(file))
        .when(|| {
            let [to, from] = socket_pair();
            for path in [c"f", c"g"] {
                let file = fd(sys!(SYS_open, path, O_RDWR));
                ok(sys!(SYS_sendmsg, to, &raw const Message::with(file).header, 0));
            }
            let (mut one, mut other) = (Message::new(), Message::new());
            let mut all = [one.header, other.header].map(|msg_hdr| mmsghdr { msg_hdr, msg_len: 0 });
            all[0].msg_hdr.msg_control = one.control.as_mut_ptr().cast();
            all[1].msg_hdr.msg_control = other.control.as_mut_ptr().cast();
            assert_eq!(ok(sys!(SYS_recvmmsg, from, all.as_mut_ptr(), 2, MSG_DONTWAIT, 0)), 2);
        })
        .then(
            "f | read,write | file | file
             g | read,write | file | file",
        ),
];

fn main() {
    support::run(&[HANDLES, TAKEN, RECEIVED]);
}
