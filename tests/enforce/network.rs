//! Socket addresses: connect, bind, listen, send.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use agent_snapshot::snapshot::{NetworkAddress, NetworkOperation, NetworkUse};

use super::{enforced, refused};
use crate::support::{Place, User, has};

/// Tries each way to use an address, and says which ones fail with EACCES.
const TRY: &str = "
import errno, socket
def attempt(what, call):
    try: call()
    except OSError as error: print(what, errno.errorcode[error.errno])
    else: print(what, 'ok')
inet, datagrams = socket.AF_INET, socket.SOCK_DGRAM
attempt('connect', lambda: socket.socket().connect(('127.0.0.1', 9)))
attempt('bind', lambda: socket.socket().bind(('127.0.0.1', 0)))
attempt('listen', lambda: socket.socket().listen())
attempt('send', lambda: socket.socket(inet, datagrams).sendto(b'x', ('127.0.0.1', 9)))
attempt('message', lambda: socket.socket(inet, datagrams).sendmsg([b'x'], [], 0, ('127.0.0.1', 9)))
";

#[test]
fn a_forbidden_address_is_not_used() {
    if !has("python3") {
        return;
    }
    for &user in User::all() {
        let place = Place::of(user);
        let output = enforced(&place, &["--deny-net"], &format!("python3 -c \"{TRY}\""));
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "connect EACCES\nbind EACCES\nlisten EACCES\nsend EACCES\nmessage EACCES\n"
        );
        assert_eq!(
            refused(&place),
            [
                "deny-net * 0.0.0.0:0 bind",
                "deny-net * 127.0.0.1:0 bind",
                "deny-net * 127.0.0.1:9 connect",
                "deny-net * 127.0.0.1:9 send"
            ],
            "{user:?}"
        );
        // A shell may ask a name service that is not there for its user.
        let is_of_inet = |used: &&NetworkUse| !matches!(used.address, NetworkAddress::Unix(_));
        let snapshot = place.snapshot();
        let used: Vec<_> = snapshot.header().network.iter().filter(is_of_inet).collect();
        assert!(used.is_empty(), "{user:?} {used:?}");
    }
}

#[test]
fn an_address_that_is_allowed_is_used() {
    if !has("python3") {
        return;
    }
    let place = Place::new();
    let script = format!("python3 -c \"{TRY}\"");
    let output = enforced(&place, &["--allow-net", "127.0.0.1:9", "--allow-unix", "/absent"], &script);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(printed, "connect ECONNREFUSED\nbind EACCES\nlisten EACCES\nsend ok\nmessage ok\n");
}

#[test]
fn a_unix_socket_is_judged_by_its_path() {
    if !has("python3") {
        return;
    }
    let place = Place::new();
    let script = "python3 -c \"
import errno, socket, os
def attempt(what, call):
    try: call()
    except OSError as error: print(what, errno.errorcode[error.errno])
    else: print(what, 'ok')
new = lambda: socket.socket(socket.AF_UNIX)
server = new()
attempt('bind', lambda: server.bind('good'))
attempt('listen', lambda: server.listen())
attempt('good', lambda: new().connect('good'))
os.symlink('good', 'link')
attempt('link', lambda: new().connect('link'))
attempt('bad', lambda: new().bind('bad'))
attempt('abstract', lambda: new().bind(b'\\0x'))
attempt('absent', lambda: new().connect('absent'))
\"";
    let output = enforced(&place, &["--allow-unix", "./good"], script);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "bind ok\nlisten ok\ngood ok\nlink ok\nbad EACCES\nabstract EACCES\nabsent ENOENT\n",
        "{output:?}"
    );
    assert_eq!(refused(&place), ["allow-unix \0x bind", "allow-unix work/bad bind"]);
}

/// A rule about a socket means it by every name: one from before, one that the command gives it, one that it had.
#[test]
fn a_unix_socket_is_judged_by_all_of_its_names() {
    if !has("python3") {
        return;
    }
    let connect = |name: &str| {
        format!(
            "python3 -c \"
import socket
try: socket.socket(socket.AF_UNIX).connect('{name}'); print('connected')
except OSError as error: print(error.strerror)
\""
        )
    };
    let ways = [
        ("by another name", connect("linked")),
        ("by a link", format!("ln sock link; {}", connect("link"))),
        ("renamed", format!("mv sock moved; {}", connect("moved"))),
        ("by its directory", format!("mv sock sub; mv sub other; {}", connect("other/sock"))),
    ];
    let listening = || {
        let place = Place::new();
        fs::create_dir(place.at("sub")).unwrap();
        let listener = UnixListener::bind(place.at("sock")).unwrap();
        fs::hard_link(place.at("sock"), place.at("linked")).unwrap();
        (place, listener)
    };
    for (way, script) in &ways {
        for rule in ["--deny-net=unix:./sock", "--allow-unix=/absent"] {
            let (place, _listener) = listening();
            let output = enforced(&place, &[rule], script);
            assert_eq!(
                String::from_utf8_lossy(&output.stdout),
                "Permission denied\n",
                "{way} {rule:?} {output:?}"
            );
        }
        let (place, _listener) = listening();
        let rules = ["--deny-net=unix:./sock"];
        let recorded = place.record_with(&rules, script);
        assert!(String::from_utf8_lossy(&recorded.stdout).starts_with("connected\n"), "{way}: {recorded:?}");
        let run = place.verb("check", &rules);
        let found = run.stdout.lines().filter(|line| line.starts_with("deny-net")).count();
        assert_eq!((run.status, found), (1, 1), "{way}: {run:#?}");
    }
}

#[test]
fn a_unix_socket_is_judged_by_its_path_outside_of_a_mount_namespace() {
    const CONNECT: &str = r"
        use Socket;
        for (1, 2) {
            socket(my $socket, AF_UNIX, SOCK_STREAM, 0);
            print connect($socket, pack_sockaddr_un('view/sock')) ? qq(connected\n) : qq($!\n);
        }";
    let inside = "unshare -rm sh -euc 'mount --bind run view; exec perl connect.pl'";
    for &user in User::all() {
        for (rule, expected) in [
            ("--deny-net=unix:./run/*", "Permission denied\nPermission denied\n"),
            ("--allow-unix=./run/*", "connected\nconnected\n"),
        ] {
            let place = Place::of(user);
            place.prepare("mkdir run view");
            place.write("connect.pl", CONNECT);
            if !place.can_run(&["sh", "-c", inside]) {
                continue;
            }
            let _listener = UnixListener::bind(place.at("run/sock")).unwrap();
            fs::set_permissions(place.at("run/sock"), Permissions::from_mode(0o777)).unwrap();
            let output = enforced(&place, &[rule], inside);
            assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{user:?} {rule} {output:?}");
        }
    }
}

/// A packet socket takes an address of any family for one of its own.
#[test]
fn a_packet_socket_is_judged_as_one() {
    let place = Place::new();
    let make = "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM)";
    if !has("python3") || !place.can_run(&["python3", "-c", make]) {
        return;
    }
    let script = "exec python3 -c \"
import ctypes, errno, os, socket
packet = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM)
libc = ctypes.CDLL(None, use_errno=True)
for family in (socket.AF_UNIX, socket.AF_NETLINK, socket.AF_INET):
    address = family.to_bytes(2, 'little') + b'x' + bytes(17)
    sent = libc.sendto(packet.fileno(), b'x', 1, 0, address, len(address))
    print(errno.errorcode[ctypes.get_errno()])
\"";
    let rules = ["--allow-net", "120.0.0.0/8", "--allow-unix", "/"];
    let output = enforced(&place, &rules, script);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "EACCES\nEACCES\nEACCES\n", "{output:?}");
    let (_, snapshot) = place.record_any(script);
    let packets = snapshot.header().network.iter().filter(|used| {
        used.address == NetworkAddress::Other("packet".to_owned()) && used.operation == NetworkOperation::Send
    });
    assert_eq!(packets.map(|used| used.count).sum::<u64>(), 2);
}
