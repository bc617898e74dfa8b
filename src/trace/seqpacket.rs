//! Messages between processes of ours, each with a descriptor if wanted (SOCK_SEQPACKET, SCM_RIGHTS,
//! unix(7)).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, sendmsg, socketpair,
};

/// Makes two connected sockets for messages in both directions.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends one message, and a duplicate of `descriptor` with it.
pub fn send(socket: impl AsFd, message: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    send_with(socket, message, descriptor, SendFlags::NOSIGNAL)
}

/// The same, or an error (EAGAIN) where that would have to wait.
pub fn offer(socket: impl AsFd, message: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    send_with(socket, message, descriptor, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

fn send_with(
    socket: impl AsFd,
    message: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
    flags: SendFlags,
) -> io::Result<()> {
    // The filter of the command's process intercepts every sendmsg, and no send without an address.
    let Some(descriptor) = descriptor else {
        rustix::io::retry_on_intr(|| rustix::net::send(&socket, message, flags))?;
        return Ok(());
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::io::retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(message)], &mut ancillary, flags))?;
    Ok(())
}

/// Waits for a message and returns its length.
pub fn next_length(socket: impl AsFd) -> io::Result<usize> {
    let flags = RecvFlags::PEEK | RecvFlags::TRUNC;
    let nothing: &mut [u8] = &mut [];
    let (_, length) = receiving(|| recv(&socket, &mut *nothing, flags))?;
    Ok(length)
}

/// Receives one message: its length, 0 if the peer is gone, and the descriptor that came with it.
pub fn receive(socket: impl AsFd, message: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = receiving(|| {
        recvmsg(&socket, &mut [IoSliceMut::new(message)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((received.bytes, descriptor))
}

/// Receives. If the peer has ended without reading all that it was sent, the kernel first reports that
/// (ECONNRESET, seen on Linux 6.18): what the peer had sent can still be received.
fn receiving<T>(mut receive: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    match rustix::io::retry_on_intr(&mut receive) {
        Err(Errno::CONNRESET) => rustix::io::retry_on_intr(receive),
        received => received,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_descriptor_arrives_with_its_message_and_the_end_is_an_empty_one() {
        let (one, other) = pair().unwrap();
        let (read, mut write) = std::io::pipe().unwrap();
        send(&one, b"with", Some(read.as_fd())).unwrap();
        send(&one, b"without", None).unwrap();
        drop((one, read));
        let mut message = [0; 16];
        let (length, descriptor) = receive(&other, &mut message).unwrap();
        assert_eq!(&message[..length], b"with");
        write.write_all(b"through").unwrap();
        drop(write);
        let mut text = String::new();
        std::fs::File::from(descriptor.unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
        let (length, descriptor) = receive(&other, &mut message).unwrap();
        assert_eq!(&message[..length], b"without");
        assert!(descriptor.is_none());
        assert_eq!(receive(&other, &mut message).unwrap().0, 0);
    }

    #[test]
    fn what_was_sent_arrives_though_its_sender_has_not_read_all() {
        let (one, other) = pair().unwrap();
        send(&one, b"last", None).unwrap();
        send(&other, b"unread", None).unwrap();
        drop(one);
        let mut message = [0; 16];
        assert_eq!(next_length(&other).unwrap(), 4);
        assert_eq!(receive(&other, &mut message).unwrap().0, 4);
        assert_eq!(receive(&other, &mut message).unwrap().0, 0);
    }
}
