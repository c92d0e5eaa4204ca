package gitcache

import (
	"crypto/rand"
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// noSpace recognizes a full disk and a quota that is used up; "" is neither.
func noSpace(err error) policy.Code {
	var ge *gitError
	isGit := errors.As(err, &ge)
	switch {
	case errors.Is(err, unix.EDQUOT), isGit && stderrHas(err, "Disk quota exceeded"):
		return policy.CodeQuotaExceeded
	case errors.Is(err, unix.ENOSPC), isGit && stderrHas(err, "No space left on device"):
		return policy.CodeDiskFull
	case isGit:
		return ge.full
	}
	return ""
}

// fullMessage says it in words.
func fullMessage(c policy.Code) string {
	if c == policy.CodeQuotaExceeded {
		return "the disk quota is used up"
	}
	return "the disk is full"
}

// diskFull asks the file system why git failed, for git does not always say:
// of a write(2) that fails during a checkout it reports "unable to write file"
// and the name alone. The unfinished file is removed by then, so there may be
// room again for something smaller.
func (c *Cache) diskFull(cmd command, stderr string) policy.Code {
	dir := cmd.target
	if dir == "" {
		dir = c.dir
	}
	const little = 128 << 10
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) == nil && (st.Bavail*uint64(st.Bsize) < little || (st.Files > 0 && st.Ffree == 0)) {
		return policy.CodeDiskFull
	}
	if !cmd.writes {
		return ""
	}
	// btrfs counts space that it cannot give, and a quota is not in statfs(2).
	switch err := tryWrite(dir, 64<<10); {
	case errors.Is(err, unix.EDQUOT):
		return policy.CodeQuotaExceeded
	case errors.Is(err, unix.ENOSPC):
		return policy.CodeDiskFull
	case err != nil && !errors.Is(err, unix.EOPNOTSUPP):
		return "" // a disk that fails in another way
	}
	if !strings.Contains(stderr, "unable to write ") { // a "file NAME", or the "new index file"
		return ""
	}
	// There is room again since git has removed what it had written of it. Whether it
	// was the disk's or a quota's, something larger may tell.
	if errors.Is(tryWrite(dir, 4<<20), unix.EDQUOT) {
		return policy.CodeQuotaExceeded
	}
	return policy.CodeDiskFull
}

// tryWrite writes n bytes to an unnamed file in dir, open(2) O_TMPFILE: there is
// nothing to be left behind.
func tryWrite(dir string, n int) error {
	f, err := os.OpenFile(dir, os.O_WRONLY|unix.O_TMPFILE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, n)
	_, _ = rand.Read(b) // zeroes would prove nothing where files are compressed
	if _, err := f.Write(b); err != nil {
		return err
	}
	return f.Sync()
}
