//! The socket addresses that a command uses.

use serde_json::{Value, json};

use crate::support::{Place, has, json as read_json, stderr};

/// What python makes of `script` is in `network`, without processes and in its order, under each mechanism.
///
/// The ports that the kernel chose are called by the names under which the script prints them.
fn check(script: &str, expected: &Value) {
    if !has("python3") {
        return;
    }
    for mechanism in ["auto", "stops", "every-call"] {
        let place = Place::new();
        place.write("script.py", format!("import socket\nfrom socket import AF_INET6, AF_NETLINK, AF_UNIX, SOCK_DGRAM, SOCK_RAW\n{script}"));
        let output = place.recorder(mechanism).args(["python3", "script.py"]).output().unwrap();
        assert!(output.status.success(), "{mechanism}: {}", stderr(&output));
        let printed = String::from_utf8(output.stdout).unwrap();
        let ports: Vec<(u64, &str)> = printed
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(port, name)| (port.parse().unwrap(), name))
            .collect();
        let manifest = read_json(&place.out.join("manifest.json"));
        let mut network = manifest["network"].as_array().unwrap().clone();
        // The C library may ask the name service cache who the user is.
        network.retain(|used| !used["path"].as_str().is_some_and(|path| path.ends_with("/nscd/socket")));
        let root = format!("{}/", place.work.display());
        for used in &mut network {
            let used = used.as_object_mut().unwrap();
            assert!(used.remove("process").unwrap().as_u64().is_some());
            if let Some(name) = used.get("port").and_then(|port| {
                ports.iter().find(|(number, _)| Some(*number) == port.as_u64()).map(|(_, name)| *name)
            }) {
                used.insert("port".to_owned(), json!(name));
            }
            if let Some(below) =
                used.get("path").and_then(Value::as_str).and_then(|path| path.strip_prefix(&root))
            {
                used.insert("path".to_owned(), json!(below));
            }
        }
        assert_eq!(&Value::Array(network), expected, "{mechanism}");
    }
}

#[test]
fn tcp_connections_have_host_and_port() {
    check(
        "a = socket.socket(); a.bind(('127.0.0.1', 0)); a.listen(); print(a.getsockname()[1], 'four')
c = socket.socket(); c.connect(a.getsockname()); c.send(b'x')
b = socket.socket(AF_INET6); b.bind(('::1', 0)); b.listen(); print(b.getsockname()[1], 'six')
for i in range(2): d = socket.socket(AF_INET6); d.connect(b.getsockname())
e = socket.socket()
try: e.bind(a.getsockname())
except OSError: pass",
        &json!([
            {"operation": "connect", "family": "inet", "address": "127.0.0.1", "port": "four", "count": 1},
            {"operation": "connect", "family": "inet6", "address": "::1", "port": "six", "count": 2},
            {"operation": "bind", "family": "inet", "address": "127.0.0.1", "port": 0, "count": 1},
            {"operation": "bind", "family": "inet", "address": "127.0.0.1", "port": "four", "count": 1,
             "errno": libc::EADDRINUSE},
            {"operation": "bind", "family": "inet6", "address": "::1", "port": 0, "count": 1},
        ]),
    );
}

#[test]
fn datagrams_have_an_address_unless_the_socket_is_connected() {
    check(
        "u = socket.socket(type=SOCK_DGRAM); u.bind(('127.0.0.1', 0)); print(u.getsockname()[1], 'port')
s = socket.socket(type=SOCK_DGRAM)
for i in range(3): s.sendto(b'x', u.getsockname())
s.connect(u.getsockname()); s.send(b'x')",
        &json!([
            {"operation": "connect", "family": "inet", "address": "127.0.0.1", "port": "port", "count": 1},
            {"operation": "bind", "family": "inet", "address": "127.0.0.1", "port": 0, "count": 1},
            {"operation": "send", "family": "inet", "address": "127.0.0.1", "port": "port", "count": 3},
        ]),
    );
}

#[test]
fn listen_binds_a_socket_that_has_no_address() {
    check(
        "a = socket.socket(); a.listen(); print(a.getsockname()[1], 'a')
b = socket.socket(); b.bind(('127.0.0.1', 0)); b.listen()
c = socket.socket(AF_INET6); c.listen()
try: socket.socket(AF_UNIX).listen()
except OSError: pass",
        &json!([
            {"operation": "bind", "family": "inet", "address": "0.0.0.0", "port": 0, "count": 1},
            {"operation": "bind", "family": "inet", "address": "127.0.0.1", "port": 0, "count": 1},
            {"operation": "bind", "family": "inet6", "address": "::", "port": 0, "count": 1},
        ]),
    );
}

#[test]
fn socket_that_comes_connected_counts_as_connected() {
    check(
        "import os
listener = socket.socket(); listener.bind(('127.0.0.1', 0)); listener.listen()
print(listener.getsockname()[1], 'port')
one, other = socket.socketpair()
pid = os.fork()
if pid == 0:
    _, fds, _, _ = socket.recv_fds(other, 1, 1)
    os.write(fds[0], b'x')
    os._exit(0)
connected = socket.create_connection(listener.getsockname())
socket.send_fds(one, [b'x'], [connected.fileno()])
os.waitpid(pid, 0)
import ctypes
SYS_pidfd_getfd = 438
fd = ctypes.CDLL(None).syscall(SYS_pidfd_getfd, os.pidfd_open(os.getpid()), connected.fileno(), 0)
assert fd > 0",
        &json!([
            {"operation": "connect", "family": "inet", "address": "127.0.0.1", "port": "port", "count": 2},
            {"operation": "bind", "family": "inet", "address": "127.0.0.1", "port": 0, "count": 1},
            {"operation": "connect", "family": "inet", "address": "127.0.0.1", "port": "port", "count": 1},
        ]),
    );
}

#[test]
fn each_message_may_have_an_address() {
    check(
        "import ctypes, os, struct
def receiver():
    s = socket.socket(type=SOCK_DGRAM); s.bind(('127.0.0.1', 0))
    return s
a, b = sorted((receiver(), receiver()), key=lambda s: s.getsockname()[1])
print(a.getsockname()[1], 'a'); print(b.getsockname()[1], 'b')
s = socket.socket(type=SOCK_DGRAM)
for i in range(3): s.sendmsg([b'x'], [], 0, a.getsockname())
libc = ctypes.CDLL(None, use_errno=True)
part = ctypes.create_string_buffer(b'x')
iov = ctypes.create_string_buffer(struct.pack('QQ', ctypes.addressof(part), 1))
def message(address):
    length = len(address.raw) if address else 0
    return struct.pack('QIxxxxQQQQixxxxIxxxx', ctypes.addressof(address) if address else 0, length, ctypes.addressof(iov), 1, 0, 0, 0, 0)
names = [ctypes.create_string_buffer(struct.pack('=H', socket.AF_INET) + struct.pack('>H4s8x', t.getsockname()[1], socket.inet_aton('127.0.0.1')), 16) for t in (a, b)]
many = ctypes.create_string_buffer(b''.join(map(message, [names[0], names[1], names[0]])))
assert libc.sendmmsg(s.fileno(), many, 3, 0) == 3
s.connect(a.getsockname())
s.sendmsg([b'x'])
many = ctypes.create_string_buffer(message(None))
assert libc.sendmmsg(s.fileno(), many, 1, 0) == 1",
        &json!([
            {"operation": "connect", "family": "inet", "address": "127.0.0.1", "port": "a", "count": 1},
            {"operation": "bind", "family": "inet", "address": "127.0.0.1", "port": 0, "count": 2},
            {"operation": "send", "family": "inet", "address": "127.0.0.1", "port": "a", "count": 4},
            {"operation": "send", "family": "inet", "address": "127.0.0.1", "port": "b", "count": 1},
        ]),
    );
}

#[test]
fn unix_sockets_have_a_path_or_an_abstract_name() {
    check(
        "a = socket.socket(AF_UNIX); a.bind('s'); a.listen()
socket.socket(AF_UNIX).connect('s')
b = socket.socket(AF_UNIX); b.bind('\\0test-%d' % 0 + chr(0)); b.listen()
socket.socket(AF_UNIX).connect('\\0test-0\\0')
d = socket.socket(AF_UNIX, SOCK_DGRAM); d.bind('d')
socket.socket(AF_UNIX, SOCK_DGRAM).sendto(b'x', 'd')
socket.socket(AF_UNIX, SOCK_DGRAM).sendmsg([b'x'], [], 0, 'd')
for call in socket.socket(AF_UNIX).connect, socket.socket(AF_UNIX).bind:
    try: call('absent' if call.__name__ == 'connect' else 's')
    except OSError: pass
n = socket.socket(AF_NETLINK, SOCK_RAW, 0); n.bind((0, 0))",
        &json!([
            {"operation": "connect", "family": "unix", "path": "\0test-0\0", "count": 1},
            {"operation": "connect", "family": "unix", "path": "absent", "count": 1, "errno": libc::ENOENT},
            {"operation": "connect", "family": "unix", "path": "s", "count": 1},
            {"operation": "bind", "family": "unix", "path": "\0test-0\0", "count": 1},
            {"operation": "bind", "family": "unix", "path": "d", "count": 1},
            {"operation": "bind", "family": "unix", "path": "s", "count": 2},
            {"operation": "bind", "family": "netlink", "count": 1},
            {"operation": "send", "family": "unix", "path": "d", "count": 2},
        ]),
    );
}

#[test]
fn addresses_beyond_the_limit_are_a_gap() {
    const MOST: usize = 10_000;
    if !has("python3") {
        return;
    }
    let place = Place::new();
    let script = format!(
        "import socket
s = socket.socket(type=socket.SOCK_DGRAM)
for port in range(1, {MOST} + 11): s.connect(('127.0.0.1', port))
s.connect(('127.0.0.1', 1))"
    );
    place.write("scan.py", script);
    let output = place.recorder("auto").args(["python3", "scan.py"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let manifest = read_json(&place.out.join("manifest.json"));
    let network = manifest["network"].as_array().unwrap();
    assert_eq!(network.len(), MOST);
    let first = network.iter().find(|used| used["port"] == 1).unwrap();
    assert_eq!(first["count"], 2, "what is known is counted on");
    let gaps: Vec<_> =
        manifest["warnings"].as_array().unwrap().iter().filter(|gap| gap["lost"] == true).collect();
    let [gap] = gaps[..] else { panic!("{gaps:?}") };
    assert_eq!(gap["kind"], "network");
    assert_eq!(gap["detail"], "after 10000 socket addresses, others are not recorded");
    assert!(gap["count"].as_u64().unwrap() >= 10, "{gap}");
    assert_eq!(manifest["complete"], false);
}
