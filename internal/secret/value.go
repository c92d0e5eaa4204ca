package secret

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// Value is one secret's bytes. The nil Value is empty. It is not safe for
// concurrent use with Wipe.
type Value struct {
	mem []byte // a whole mapping
	n   int
}

// redacted is what a value shows of itself.
const redacted = "[secret]"

func allocate(n int) (*Value, error) {
	page := os.Getpagesize()
	size := max(page, (n+page-1)/page*page)
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	for _, advice := range []int{unix.MADV_DONTDUMP, unix.MADV_WIPEONFORK} {
		if err := unix.Madvise(mem, advice); err != nil {
			_ = unix.Munmap(mem) // nothing is in it
			return nil, os.NewSyscallError("madvise", err)
		}
	}
	_ = unix.Mlock(mem) // see the package comment
	return &Value{mem: mem}, nil
}

// ErrTooLarge says that a store gave more than policy.MaxSecretBytes.
var ErrTooLarge = errors.New("the value is larger than a secret may be")

// Read makes a Value of everything that r has, at most policy.MaxSecretBytes. The
// bytes go from the reader's system call into the Value's memory: r must not buffer.
func Read(r io.Reader) (*Value, error) {
	v, err := allocate(policy.MaxSecretBytes + 1)
	if err != nil {
		return nil, err
	}
	for {
		n, err := r.Read(v.mem[v.n : policy.MaxSecretBytes+1])
		v.n += n
		switch {
		case v.n > policy.MaxSecretBytes:
			v.Wipe()
			return nil, ErrTooLarge
		case err == io.EOF:
			return v, nil
		case err != nil:
			v.Wipe()
			return nil, err
		}
	}
}

// Copy makes a Value of b, which stays the caller's to wipe.
func Copy(b []byte) (*Value, error) {
	if len(b) > policy.MaxSecretBytes {
		return nil, ErrTooLarge
	}
	v, err := allocate(len(b))
	if err == nil {
		v.n = copy(v.mem, b)
	}
	return v, err
}

// Bytes is the value itself, until Wipe. Do not convert it to a string.
func (v *Value) Bytes() []byte {
	if v == nil {
		return nil
	}
	return v.mem[:v.n]
}

// TrimNewline takes one line feed from the end, as $(…) of a shell takes them: files
// and commands end their last line, and neither a variable nor a header wants it.
func (v *Value) TrimNewline() {
	if v != nil && v.n > 0 && v.mem[v.n-1] == '\n' {
		v.n--
		v.mem[v.n] = 0
	}
}

// Wipe overwrites the value and gives its memory back. Wiping again does nothing.
func (v *Value) Wipe() {
	if v == nil || v.mem == nil {
		return
	}
	clear(v.mem)
	_ = unix.Munmap(v.mem) // cannot fail for a whole mapping of ours
	v.mem, v.n = nil, 0
}

// Format, String and GoString keep a value out of every message.
func (v *Value) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }
func (v *Value) String() string             { return redacted }
func (v *Value) GoString() string           { return redacted }

// MarshalText and MarshalJSON refuse, so that no document can hold a value.
func (v *Value) MarshalText() ([]byte, error) { return nil, errEncoded }
func (v *Value) MarshalJSON() ([]byte, error) { return nil, errEncoded }

var errEncoded = errors.New("a secret's value is never encoded")
