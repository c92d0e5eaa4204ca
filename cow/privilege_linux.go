package cow

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// identity is who creates files here and what it may do to them.
type identity struct {
	uid, gid uint32
	chown    bool // CAP_CHOWN: owner and group can be kept
	setfcap  bool // CAP_SETFCAP: security.capability can be kept
	umask    uint32
}

func whoAmI() identity {
	caps := effectiveCaps()
	return identity{
		uid:     uint32(unix.Geteuid()),
		gid:     uint32(unix.Getegid()),
		chown:   caps&(1<<unix.CAP_CHOWN) != 0,
		setfcap: caps&(1<<unix.CAP_SETFCAP) != 0,
		umask:   umask(),
	}
}

// effectiveCaps reads the calling thread's effective set, capget(2).
func effectiveCaps() uint64 {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return 0
	}
	return uint64(data[1].Effective)<<32 | uint64(data[0].Effective)
}

// umask reads the mask instead of setting it, since it belongs to the whole
// process (proc_pid_status(5), "Umask", Linux 4.7). Without /proc everything
// counts as masked: every file then gets an fchmod(2), which is right and slower.
func umask() uint32 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0o777
	}
	_, after, ok := bytes.Cut(b, []byte("\nUmask:"))
	if !ok {
		return 0o777
	}
	line, _, _ := bytes.Cut(after, []byte("\n"))
	m, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 8, 32)
	if err != nil {
		return 0o777
	}
	return uint32(m) & 0o777
}
