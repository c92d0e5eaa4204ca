package cow

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

const (
	cacheName    = "probe.json"
	cacheVersion = 1
	cacheMax     = 64 << 10
	// failuresFor is how long a "no" is believed. What works goes on working;
	// what does not may be mended by the operator who has just read why.
	failuresFor = 10 * time.Minute
)

type cacheFile struct {
	Version int    `json:"version"`
	Key     string `json:"key"`
	Table   *Table `json:"table"`
}

// cacheKey names everything that the answers depend on and that can be asked
// cheaply: the file system (device number and id, since the first is handed out
// anew and the second survives mkfs of another device), its mount flags, the
// kernel and the boot, and who we are. Not in it are sysctls, LSM policies and
// file-system-specific mount options: when one of them forbids what worked, the
// step itself fails with its diagnostic until yoi doctor probes afresh.
func cacheKey(dir int) (string, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(dir, &fs); err != nil {
		return "", err
	}
	var st unix.Statx_t
	if err := statxFd(dir, unix.STATX_BASIC_STATS, &st); err != nil {
		return "", err
	}
	var un unix.Utsname
	if err := unix.Uname(&un); err != nil {
		return "", err
	}
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // without /proc, less is known
	return fmt.Sprintf("dev=%d:%d fsid=%08x%08x type=%x flags=%x kernel=%s boot=%s euid=%d caps=%x",
		st.Dev_major, st.Dev_minor, uint32(fs.Fsid.Val[0]), uint32(fs.Fsid.Val[1]), uint32(fs.Type), fs.Flags,
		unix.ByteSliceToString(un.Release[:]), strings.TrimSpace(string(boot)), unix.Geteuid(), effectiveCaps()), nil
}

// readCache returns the kept table if it can be believed. The file is a hint:
// whatever is wrong with it only means probing again.
func readCache(dir int, key string, now time.Time) *Table {
	f, err := openBeneath(dir, newCname(cacheName), unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil
	}
	defer closeFd(f)
	buf := make([]byte, cacheMax)
	n, err := unix.Pread(f, buf, 0)
	if err != nil || n == len(buf) {
		return nil
	}
	return decodeCache(buf[:n], key, now)
}

func decodeCache(b []byte, key string, now time.Time) *Table {
	var c cacheFile
	if json.Unmarshal(b, &c) != nil || c.Version != cacheVersion || c.Key != key || c.Table == nil {
		return nil
	}
	all := Strategies()
	if len(c.Table.Entries) != len(all) {
		return nil
	}
	age := now.Sub(c.Table.ProbedAt)
	for i, e := range c.Table.Entries {
		_, never := all[i].(notHere)
		unsure := !e.Support.OK && !never || e.Support.Costly
		if e.Name != all[i].Name() || age < 0 || (unsure && age > failuresFor) {
			return nil
		}
	}
	return c.Table
}

// writeCache replaces the file in one step. That it fails is no failure of the
// probe: the next caller probes again.
func writeCache(dir int, key string, t *Table) {
	b, err := json.MarshalIndent(cacheFile{cacheVersion, key, t}, "", "  ")
	if err != nil {
		return
	}
	tmp := newCname("." + policy.NewID("probe-") + ".json")
	f, err := createFile(dir, tmp, 0o600)
	if err != nil {
		return
	}
	_, err = unix.Pwrite(f, append(b, '\n'), 0)
	closeFd(f)
	name := newCname(cacheName)
	if err == nil {
		_, err = retry(unix.SYS_RENAMEAT, uintptr(dir), uintptr(tmp.ptr()), uintptr(dir), uintptr(unsafe.Pointer(&name[0])), 0, 0)
	}
	if err != nil {
		_ = unlinkat(dir, tmp, 0)
	}
}
