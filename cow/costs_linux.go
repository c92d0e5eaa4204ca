package cow

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

const (
	costsName = "costs"
	// costsMost is the size from which the file is written anew with the newest
	// samples only; costsLimit is above what it can come to in honesty.
	costsMost  = 32 << 10
	costsLimit = 256 << 10
)

// Device names the file system of dir across boots as well as its kind allows.
func Device(dir *os.File) string {
	defer runtime.KeepAlive(dir)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd(dir), &fs); err != nil {
		return "unknown"
	}
	return fmt.Sprintf("%s-%08x%08x", fileSystemName(uint32(fs.Type)), uint32(fs.Fsid.Val[0]), uint32(fs.Fsid.Val[1]))
}

// ReadCosts returns what was measured on dir's device. The file is a hint:
// whatever is wrong with it only means that less is known.
func ReadCosts(dir *os.File) Costs {
	defer runtime.KeepAlive(dir)
	return learn(readSamples(fd(dir)), Device(dir))
}

func readSamples(dir int) []Sample {
	f, err := openBeneath(dir, newCname(costsName), unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil
	}
	defer closeFd(f)
	buf := make([]byte, costsLimit)
	n, err := readFull(f, buf, 0)
	if err != nil || n == len(buf) {
		return nil
	}
	return parseSamples(string(buf[:n]))
}

// Record remembers a sample of dir's device in dir, the Runtime root. Several
// processes may do so at once: a line is appended whole (write(2) with O_APPEND).
// It is not synced, and that it fails is nobody's failure.
func Record(dir *os.File, s Sample) {
	defer runtime.KeepAlive(dir)
	if s.Files < 1 || s.Took < 0 {
		return
	}
	s.Device = Device(dir)
	how := unix.OpenHow{Flags: unix.O_WRONLY | unix.O_APPEND | unix.O_CREAT | unix.O_NONBLOCK | unix.O_CLOEXEC | unix.O_NOFOLLOW, Mode: 0o600, Resolve: beneath}
	f, err := unix.Openat2(fd(dir), costsName, &how)
	if err != nil {
		return
	}
	defer closeFd(f)
	var st unix.Stat_t
	if unix.Fstat(f, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 {
		return
	}
	if st.Size == 0 && giveTo(fd(dir), f) != nil {
		return
	}
	line := s.line()
	if _, err := unix.Write(f, []byte(line)); err == nil && st.Size > costsMost {
		compact(dir, f)
	}
}

// compact replaces the file by one with the newest samples. A sample that another
// process appends to the old file meanwhile is lost.
func compact(dir *os.File, f int) {
	if unix.Flock(f, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return // somebody else is at it
	}
	var text []byte
	for _, s := range newest(readSamples(fd(dir))) {
		text = append(text, s.line()...)
	}
	tmp := newCname("." + policy.NewID("costs-"))
	t, err := createFile(fd(dir), tmp, 0o600)
	if err != nil {
		return
	}
	err = giveTo(fd(dir), t)
	if err == nil && len(text) > 0 {
		_, err = unix.Pwrite(t, text, 0)
	}
	closeFd(t)
	name := newCname(costsName)
	if err == nil {
		_, err = retry(unix.SYS_RENAMEAT, uintptr(fd(dir)), uintptr(tmp.ptr()), uintptr(fd(dir)), uintptr(unsafe.Pointer(&name[0])), 0, 0)
	}
	if err != nil {
		_ = unlinkat(fd(dir), tmp, 0)
	}
}
