package helper

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// Limits of a message. A body above maxInline travels in a sealed memfd, since
// a SOCK_SEQPACKET message must fit the socket's send buffer (212,992 bytes by
// default, net.core.wmem_default).
const (
	maxInline  = 48 << 10
	maxMessage = 64 << 10
	maxBody    = 4 << 20
	maxFiles   = 48 // below the kernel's SCM_MAX_FD of 253
	maxFilter  = 32 << 10
)

// errHangup is the peer's orderly end.
var errHangup = errors.New("the peer closed the connection")

// decodeStrict reads exactly one JSON value into v: unknown fields, trailing
// data and duplicated values by case are errors.
func decodeStrict(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("data after the JSON value")
	}
	return nil
}

// decodeBody is decodeStrict for a request's body, as a diagnostic.
func decodeBody(b []byte, v any) error {
	if len(b) == 0 {
		return policy.Errorf(policy.CodeBadRequest, "helper.request", "the request has no body")
	}
	if err := decodeStrict(b, v); err != nil {
		return policy.Errorf(policy.CodeBadRequest, "helper.request", "the request's body is malformed").Because(err)
	}
	return nil
}

// sendMessage writes one message with descriptors. Closing them stays with the
// caller.
func sendMessage(c *net.UnixConn, b []byte, files []*os.File) error {
	if len(b) > maxMessage {
		return policy.Errorf(policy.CodeRequestTooLarge, "helper.send", "a message of %d bytes is too large", len(b))
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		oob = unix.UnixRights(fds...)
	}
	n, oobn, err := c.WriteMsgUnix(b, oob, nil)
	for _, f := range files {
		defer keepAlive(f)
	}
	if err != nil {
		return err
	}
	if n != len(b) || oobn != len(oob) {
		return io.ErrShortWrite
	}
	return nil
}

// receiveMessage reads one message. The files are close-on-exec
// (MSG_CMSG_CLOEXEC, which package net sets) and the caller's to close, also
// when the message is refused by what reads it. buf is scratch of maxMessage+1.
func receiveMessage(c *net.UnixConn, buf []byte) ([]byte, []*os.File, error) {
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, flags, _, err := c.ReadMsgUnix(buf, oob)
	files, cerr := parseRights(oob[:oobn])
	if err == nil {
		err = cerr
	}
	switch {
	case err != nil && !errors.Is(err, io.EOF):
	case n == 0:
		err = errHangup
	case flags&unix.MSG_TRUNC != 0 || n > maxMessage:
		err = policy.Errorf(policy.CodeRequestTooLarge, "helper.receive", "a message is larger than %d bytes", maxMessage)
	case flags&unix.MSG_CTRUNC != 0:
		err = policy.Errorf(policy.CodeRequestTooLarge, "helper.receive", "a message carries more than %d descriptors", maxFiles)
	}
	if err != nil {
		closeAll(files)
		return nil, nil, err
	}
	return buf[:n], files, nil
}

func parseRights(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue // credentials and the like, which nobody asked for
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// sealedMemfd returns a read-only view of b that nobody can change any more.
func sealedMemfd(name string, b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Write(b); err != nil {
		f.Close()
		return nil, err
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		f.Close()
		return nil, fmt.Errorf("seal memfd: %w", err)
	}
	return f, nil
}

// readSealed reads what sealedMemfd wrote. It insists on the seals, so that the
// peer cannot change the bytes between check and use, and on a size limit.
func readSealed(f *os.File, limit int64) ([]byte, error) {
	const op = "helper.receive"
	const want = unix.F_SEAL_SHRINK | unix.F_SEAL_WRITE
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&want != want {
		return nil, policy.Errorf(policy.CodeBadRequest, op, "a descriptor is not a sealed memfd").Because(err)
	}
	st, err := f.Stat()
	if err != nil {
		return nil, policy.Errorf(policy.CodeBadRequest, op, "a descriptor cannot be read").Because(err)
	}
	if st.Size() > limit {
		return nil, policy.Errorf(policy.CodeRequestTooLarge, op, "a body is larger than %d bytes", limit)
	}
	b := make([]byte, st.Size())
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		return nil, policy.Errorf(policy.CodeBadRequest, op, "a descriptor cannot be read").Because(err)
	}
	return b, nil
}
