package seccomp

import (
	"encoding/binary"
	"slices"

	"yoi.dev/yoi-runtime/policy/seccomp/internal/cbpf"
)

const (
	userNotif = 0x7fc00000 // SECCOMP_RET_USER_NOTIF, Linux 5.0
	bpfRet    = 0x06       // BPF_RET | BPF_K
)

// Call is struct seccomp_data: a system call as a filter sees it.
type Call = cbpf.Data

// Notifying is filter with a notification in place of each refusal. Whoever holds
// the listener answers with what filter says, see Refusal; when nobody does any
// more, the kernel answers ENOSYS. It refuses exactly what filter does, and kills
// where filter kills.
func Notifying(filter []byte) []byte {
	b := slices.Clone(filter)
	for at := 0; at+8 <= len(b); at += 8 {
		if binary.NativeEndian.Uint16(b[at:]) != bpfRet {
			continue
		}
		if _, refuses := Action(binary.NativeEndian.Uint32(b[at+4:])).ErrnoOf(); refuses {
			binary.NativeEndian.PutUint32(b[at+4:], userNotif)
		}
	}
	return b
}

// Refusal is the error number with which filter refuses a call: EPERM if it does
// not, or is no filter, since a notification is never a permission.
func Refusal(filter []byte, c Call) uint16 {
	p, err := cbpf.Decode(filter)
	if err != nil {
		return ePERM
	}
	verdict, _, err := p.Run(c)
	if e, refuses := Action(verdict).ErrnoOf(); err == nil && refuses {
		return e
	}
	return ePERM
}
