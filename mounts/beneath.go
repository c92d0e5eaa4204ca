package mounts

import (
	"os"

	"golang.org/x/sys/unix"
)

// OpenBeneath opens rel, which may not leave dir: no "..", absolute path,
// symbolic link or magic link can lead out, whatever is renamed meanwhile
// (openat2(2), Linux 5.6). rel "" is dir itself. Without openat2 the result is
// CodeKernelFeatureMissing: a walk by components can be raced.
func OpenBeneath(dir *os.File, rel string, flags int) (*os.File, error) {
	return OpenBeneathMode(dir, rel, flags, 0)
}

// OpenBeneathMode is OpenBeneath with the mode of a file that O_CREAT makes.
func OpenBeneathMode(dir *os.File, rel string, flags int, mode uint32) (*os.File, error) {
	if rel == "" {
		rel = "."
	}
	how := unix.OpenHow{
		Flags:   uint64(flags) | unix.O_CLOEXEC,
		Mode:    uint64(mode),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	for try := 0; ; try++ {
		fd, err := unix.Openat2(int(dir.Fd()), rel, &how)
		if err == nil {
			return os.NewFile(uintptr(fd), rel), nil
		}
		// A rename or mount anywhere on the host can make a walk fail once.
		if (err == unix.EAGAIN || err == unix.EINTR) && try < 1000 {
			continue
		}
		return nil, explain("mounts.open_beneath", "openat2", err)
	}
}
