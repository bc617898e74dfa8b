//! mknod, mknodat, and the AF_UNIX addresses of bind, connect, sendto, sendmsg and sendmmsg.

mod support;

use std::ffi::CStr;

use support::legacy::*;
use support::{CWD, Case, NOWHERE, case, dir, fails, fd, file, ok, path_only, skip, symlink};

const MKNOD: &[Case] = &[
    case("makes_nodes", &["mknod", "mknodat"])
        .given(|| dir("d"))
        .when(|| {
            let at = path_only(c"d");
            ok(sys!(SYS_mknod, c"p", S_IFIFO | 0o644, 0));
            ok(sys!(SYS_mknodat, at, c"f", S_IFREG | 0o644, 0));
            ok(sys!(SYS_mknodat, CWD, c"s", S_IFSOCK | 0o644, 0));
        })
        .then(
            "d | existence | directory | directory
             d/f | write | absent | file
             p | write | absent | fifo
             s | write | absent | socket",
        ),
    case("makes_a_device", &["mknod"])
        .only_root()
        .when(|| match sys!(SYS_mknod, c"null", S_IFCHR | 0o666, 0x103) {
            Err(EPERM) => skip("device nodes can't be created here"),
            other => {
                ok(other);
            }
        })
        .then("null | write | absent | char_device"),
    case("makes_no_node", &["mknod", "mknodat"])
        .given(|| {
            file("f");
            symlink("nowhere", "l");
        })
        .when(|| {
            fails(EEXIST, sys!(SYS_mknod, c"f", S_IFIFO | 0o644, 0));
            fails(EEXIST, sys!(SYS_mknodat, CWD, c"l", S_IFREG | 0o644, 0));
            fails(ENOENT, sys!(SYS_mknod, c"d/p", S_IFIFO | 0o644, 0));
            fails(ENOTDIR, sys!(SYS_mknod, c"f/p", S_IFIFO | 0o644, 0));
            fails(ENOENT, sys!(SYS_mknod, c"", S_IFIFO | 0o644, 0));
            fails(EFAULT, sys!(SYS_mknod, NOWHERE, S_IFIFO | 0o644, 0));
            fails(EFAULT, sys!(SYS_mknodat, CWD, NOWHERE, S_IFIFO | 0o644, 0));
        })
        .then(
            "d/p | existence | absent | absent
             f | existence | file | file
             l | existence | symlink | symlink",
        ),
];

fn address(path: &CStr) -> (sockaddr_un, usize) {
    let mut address = sockaddr_un { sun_family: 1, sun_path: [0; 108] };
    for (to, from) in address.sun_path.iter_mut().zip(path.to_bytes()) {
        *to = *from as _;
    }
    // Without the NUL: the length says it too.
    (address, 2 + path.to_bytes().len())
}

fn socket(kind: c_int) -> c_int {
    fd(sys!(SYS_socket, AF_UNIX, kind, 0))
}

fn at_address(number: c_long, socket: c_int, path: &CStr) -> support::Answer {
    let (address, len) = address(path);
    sys!(number, socket, &raw const address, len)
}

/// A message of one byte to `path`, or to the peer of a connected socket.
struct Message {
    address: sockaddr_un,
    len: usize,
    part: iovec,
}

impl Message {
    fn to(path: Option<&CStr>) -> Message {
        let (address, len) = path.map_or((address(c"").0, 0), address);
        let part = iovec { iov_base: c"x".as_ptr().cast_mut().cast(), iov_len: 1 };
        Message { address, len, part }
    }

    fn header(&mut self) -> mmsghdr {
        // SAFETY: all-zeroes is a valid mmsghdr.
        let mut header: mmsghdr = unsafe { std::mem::zeroed() };
        if self.len > 0 {
            header.msg_hdr.msg_name = (&raw mut self.address).cast();
            header.msg_hdr.msg_namelen = self.len.try_into().unwrap();
        }
        header.msg_hdr.msg_iov = &raw mut self.part;
        header.msg_hdr.msg_iovlen = 1;
        header
    }
}

const SOCKETS: &[Case] = &[
    case("binds_connects_and_sends", &["bind", "connect", "sendto"])
        .when(|| {
            let (listener, receiver) = (socket(SOCK_STREAM), socket(SOCK_DGRAM));
            ok(at_address(SYS_bind, listener, c"stream"));
            ok(sys!(SYS_listen, listener, 1));
            ok(at_address(SYS_connect, socket(SOCK_STREAM), c"stream"));
            ok(at_address(SYS_bind, receiver, c"datagrams"));
            let (address, len) = address(c"datagrams");
            ok(sys!(SYS_sendto, socket(SOCK_DGRAM), c"x", 1, 0, &raw const address, len));
        })
        .then(
            "datagrams | write,existence | absent | socket
             stream | write,existence | absent | socket",
        ),
    case("sends_messages_to_paths", &["sendmsg", "sendmmsg"])
        .when(|| {
            for path in [c"a", c"b"] {
                ok(at_address(SYS_bind, socket(SOCK_DGRAM), path));
            }
            let sender = socket(SOCK_DGRAM);
            let mut messages = [c"a", c"b", c"y", c"x"].map(|path| Message::to(Some(path)));
            let headers = messages.each_mut().map(Message::header);
            ok(sys!(SYS_sendmsg, sender, &raw const headers[0].msg_hdr, 0));
            fails(ENOENT, sys!(SYS_sendmsg, sender, &raw const headers[3].msg_hdr, 0));
            ok(sys!(SYS_sendmmsg, sender, headers.as_ptr(), 3, 0));
        })
        .then(
            "a | write,existence | absent | socket
             b | write,existence | absent | socket
             x | existence | absent | absent
             y | existence | absent | absent",
        ),
    case("messages_to_a_peer", &["sendmsg", "sendmmsg"]).when(|| {
        let mut pair = [0; 2];
        ok(sys!(SYS_socketpair, AF_UNIX, SOCK_DGRAM, 0, pair.as_mut_ptr()));
        let mut message = Message::to(None);
        let header = message.header();
        ok(sys!(SYS_sendmsg, pair[0], &raw const header.msg_hdr, 0));
        ok(sys!(SYS_sendmmsg, pair[0], &raw const header, 1, 0));
        fails(EFAULT, sys!(SYS_sendmsg, pair[0], NOWHERE, 0));
        fails(EFAULT, sys!(SYS_sendmmsg, pair[0], NOWHERE, 1, 0));
    }),
    case("connects_through_a_link", &["connect"])
        .given(|| {
            ok(sys!(SYS_mknod, c"s", S_IFSOCK | 0o644, 0));
            symlink("s", "l");
        })
        .when(|| fails(ECONNREFUSED, at_address(SYS_connect, socket(SOCK_STREAM), c"l")))
        .then(
            "l | existence | symlink | symlink
             s | existence | socket | socket",
        ),
    case("finds_no_socket", &["bind", "connect", "sendto"])
        .given(|| file("f"))
        .when(|| {
            fails(EADDRINUSE, at_address(SYS_bind, socket(SOCK_STREAM), c"f"));
            fails(ECONNREFUSED, at_address(SYS_connect, socket(SOCK_STREAM), c"f"));
            fails(ENOENT, at_address(SYS_connect, socket(SOCK_STREAM), c"x"));
            fails(ENOENT, at_address(SYS_bind, socket(SOCK_STREAM), c"d/s"));
            let (address, len) = address(c"y");
            fails(ENOENT, sys!(SYS_sendto, socket(SOCK_DGRAM), c"x", 1, 0, &raw const address, len));
        })
        .then(
            "d/s | existence | absent | absent
             f | existence | file | file
             x | existence | absent | absent
             y | existence | absent | absent",
        ),
    case("addresses_that_are_no_paths", &["bind", "listen", "connect", "sendto"]).when(|| {
        let mut abstracted = address(c"xname").0;
        abstracted.sun_path[0] = 0;
        fails(ECONNREFUSED, sys!(SYS_connect, socket(SOCK_STREAM), &raw const abstracted, 7));
        // The kernel chooses a name.
        let bound = socket(SOCK_STREAM);
        ok(sys!(SYS_bind, bound, &raw const abstracted, 2));
        ok(sys!(SYS_listen, bound, 1));
        fails(EFAULT, sys!(SYS_bind, socket(SOCK_STREAM), NOWHERE, 9));
        fails(EINVAL, sys!(SYS_connect, socket(SOCK_STREAM), &raw const abstracted, -1));
        let mut pair = [0; 2];
        ok(sys!(SYS_socketpair, AF_UNIX, SOCK_DGRAM, 0, pair.as_mut_ptr()));
        ok(sys!(SYS_sendto, pair[0], c"x", 1, 0, 0, 0));
    }),
];

fn main() {
    support::run(&[MKNOD, SOCKETS]);
}
