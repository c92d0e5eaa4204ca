package secret

import (
	"encoding/binary"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// Given is a secret with its value: what a policy asks for, resolved.
type Given struct {
	policy.Secret
	Value *Value
}

// Set is what one Worker is given.
type Set []Given

// Wipe wipes every value.
func (s Set) Wipe() {
	for _, g := range s {
		g.Value.Wipe()
	}
}

// Split separates what goes into the sandbox from what only the egress proxy has.
// The values are shared with s.
func (s Set) Split() (inside, headers Set) {
	for _, g := range s {
		if g.As == policy.SecretHTTPHeader {
			headers = append(headers, g)
		} else {
			inside = append(inside, g)
		}
	}
	return inside, headers
}

// Secrets are the set's handles and places, which Unpack takes beside the memfd.
func (s Set) Secrets() []policy.Secret {
	var out []policy.Secret
	for _, g := range s {
		out = append(out, g.Secret)
	}
	return out
}

const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE

// maxPacked is what the largest set takes.
const maxPacked = policy.MaxSecrets * (4 + policy.MaxSecretBytes)

// Pack returns a sealed memfd (memfd_create(2)) that holds the values: of each its
// length, 32 bits, little-endian, and its bytes. The kernel frees its pages, cleared
// before anybody else gets them, when the last descriptor is closed.
func (s Set) Pack() (_ *os.File, err error) {
	fd, err := unix.MemfdCreate("secrets", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "secrets")
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	for _, g := range s {
		b := g.Value.Bytes()
		if _, err := f.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(b)))); err != nil {
			return nil, err
		}
		if _, err := f.Write(b); err != nil {
			return nil, err
		}
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return f, nil
}

var errPacked = errors.New("not the sealed values of these secrets")

// Unpack reads what Pack wrote for the same secrets. It insists on the seals, so
// that the peer cannot change the bytes between check and use.
func Unpack(f *os.File, secrets []policy.Secret) (set Set, err error) {
	defer func() {
		if err != nil {
			set.Wipe()
			set = nil
		}
	}()
	got, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || got&seals != seals {
		return nil, errPacked
	}
	st, err := f.Stat()
	if err != nil || st.Size() > maxPacked || len(secrets) > policy.MaxSecrets {
		return nil, errPacked
	}
	at := int64(0)
	for _, s := range secrets {
		var head [4]byte
		if _, err := f.ReadAt(head[:], at); err != nil {
			return set, errPacked
		}
		at += int64(len(head))
		n := int64(binary.LittleEndian.Uint32(head[:]))
		if n > policy.MaxSecretBytes || n > st.Size()-at {
			return set, errPacked
		}
		v, err := Read(io.NewSectionReader(f, at, n))
		if err != nil {
			return set, err
		}
		set = append(set, Given{s, v})
		at += n
	}
	if at != st.Size() {
		return set, errPacked
	}
	return set, nil
}
