package nsexec

import (
	"encoding/binary"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

func numCPU() int { return runtime.GOMAXPROCS(0) }

// rawFilter encodes a classic BPF program as Spec.Filter wants it.
func rawFilter(prog ...unix.SockFilter) []byte {
	b := make([]byte, 0, 8*len(prog))
	for _, f := range prog {
		b = binary.LittleEndian.AppendUint16(b, f.Code)
		b = append(b, f.Jt, f.Jf)
		b = binary.LittleEndian.AppendUint32(b, f.K)
	}
	return b
}

const (
	bpfLoad = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	bpfJeq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	bpfRet  = unix.BPF_RET | unix.BPF_K
)

// denyCall is a filter under which nr fails with errno.
func denyCall(errno uint32, nrs ...uint32) []byte {
	prog := []unix.SockFilter{{Code: bpfLoad}}
	for _, nr := range nrs {
		prog = append(prog, unix.SockFilter{Code: bpfJeq, K: nr, Jf: 1}, unix.SockFilter{Code: bpfRet, K: unix.SECCOMP_RET_ERRNO | errno})
	}
	return rawFilter(append(prog, unix.SockFilter{Code: bpfRet, K: unix.SECCOMP_RET_ALLOW})...)
}

// loadFilter confines every thread of this process.
func loadFilter(raw []byte) error {
	prog := struct {
		n   uint64
		ptr unsafe.Pointer
	}{uint64(len(raw) / 8), unsafe.Pointer(&raw[0])}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return errno
	}
	return nil
}

func num10(v uint64) string { return strconv.FormatUint(v, 10) }
