package nsexec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/replay"
	"yoi.dev/yoi-runtime/policy"
)

// The init executable is one read-only page: headers and code.
const (
	initBase = 0x400000
	initCode = 0xc0
	initSize = 0x1000
)

var initEnd = []byte("yoi-end!\xf1\xf2\xf3\xf4\xf5\xf6\xf7\xf8")

// initExecutable is shared by all launches of this process: sealed, nobody can
// change it, and mode 0111 makes whoever runs it non-dumpable from the first
// instruction on (execve(2), would_dump in fs/exec.c). The Worker can neither
// read it nor reopen it through /proc/1/exe (CVE-2019-5736), and there would be
// nothing of the host behind it.
var initExecutable = sync.OnceValues(makeInit)

func makeInit() (*os.File, error) {
	image, err := initImage()
	if err != nil {
		return nil, err
	}
	return sealedProgram("yoi-init", image)
}

// stageExecutable runs what enters a sandbox (package replay); what is said of
// initExecutable holds for it.
var stageExecutable = sync.OnceValues(func() (*os.File, error) {
	code, entry, err := replay.Stage()
	if err != nil {
		return nil, policy.Errorf(policy.CodeInternal, opEnter, "the program that enters a sandbox cannot be made").Because(err)
	}
	return sealedProgram("yoi-enter", elfImage(code, entry))
})

// sealedProgram is an executable in memory that nobody can read or change.
func sealedProgram(name string, image []byte) (*os.File, error) {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return nil, initFailed("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Write(image); err != nil {
		f.Close()
		return nil, initFailed("write", err)
	}
	if err := unix.Fchmod(fd, initMode()); err != nil {
		f.Close()
		return nil, initFailed("fchmod", err)
	}
	seals := unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals|unix.F_SEAL_EXEC); err != nil {
		if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
			f.Close()
			return nil, initFailed("fcntl", err)
		}
	}
	return f, nil
}

func initFailed(call string, err error) error {
	return policy.Errorf(policy.CodeLaunchFailed, opLaunch, "the sandbox's init could not be made: %s: %v", call, err).
		WithHint("An executable memfd is needed: sysctl vm.memfd_noexec must not be 2.").
		Because(os.NewSyscallError(call, err))
}

// initImage is the init's executable.
func initImage() ([]byte, error) {
	window := unsafe.Slice((*byte)(initAddr()), initSize/2-initCode)
	n := bytes.Index(window, initEnd)
	if n < 0 {
		return nil, policy.Errorf(policy.CodeInternal, opLaunch, "the sandbox's init has no end mark")
	}
	image := elfImage(window[:n], 0)
	weakenInit(image)
	return image, nil
}

// elfImage builds a static ELF executable (elf(5)) around code that is entered at
// an offset.
func elfImage(code []byte, entry int) []byte {
	image := make([]byte, initSize)
	le := binary.LittleEndian
	copy(image, "\x7fELF\x02\x01\x01") // 64 bits, little-endian
	le.PutUint16(image[16:], 2)        // ET_EXEC
	le.PutUint16(image[18:], 62)       // EM_X86_64
	le.PutUint32(image[20:], 1)
	le.PutUint64(image[24:], uint64(initBase+initCode+entry))
	le.PutUint64(image[32:], 64) // program headers
	le.PutUint16(image[52:], 64)
	le.PutUint16(image[54:], 56)
	le.PutUint16(image[56:], 2)
	load := image[64:]
	le.PutUint32(load, 1)     // PT_LOAD
	le.PutUint32(load[4:], 5) // read, execute
	le.PutUint64(load[16:], initBase)
	le.PutUint64(load[24:], initBase)
	le.PutUint64(load[32:], initSize)
	le.PutUint64(load[40:], initSize)
	le.PutUint64(load[48:], initSize)
	stack := image[120:]
	le.PutUint32(stack, 0x6474e551) // PT_GNU_STACK, not executable
	le.PutUint32(stack[4:], 6)
	copy(image[initCode:], code)
	return image
}
