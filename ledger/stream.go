package ledger

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	maxStreams = 1000
	// maxSegmentFile bounds what a reader takes into memory.
	maxSegmentFile = 256 << 20
)

// OpenDir opens the directory <root>/ledger, and with create makes it durably.
func OpenDir(path string, create bool) (*os.File, error) {
	const op = "ledger.open"
	if create {
		err := os.Mkdir(path, 0o700)
		if err == nil {
			err = syncPath(filepath.Dir(path))
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, failed(op, err)
		}
	}
	f, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, unreadable(op, err)
	}
	return f, nil
}

func syncPath(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

func streamName(n int) string { return fmt.Sprintf("s%03d", n) }

// names lists a directory. Each call opens it anew, so that callers may share dir.
func names(dir *os.File) ([]string, error) {
	d, err := openAt(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	out, err := d.Readdirnames(-1)
	slices.Sort(out)
	return out, err
}

// segmentNumbers lists the segments of a stream in order.
func segmentNumbers(dir *os.File) ([]uint64, error) {
	all, err := names(dir)
	if err != nil {
		return nil, err
	}
	var out []uint64
	for _, n := range all {
		if number, ok := segmentNumber(n); ok {
			out = append(out, number)
		}
	}
	slices.Sort(out)
	return out, nil
}

func readSegment(dir *os.File, number uint64) ([]byte, error) {
	return readSegmentFrom(dir, number, 0)
}

// readSegmentFrom reads what stands from an offset on.
func readSegmentFrom(dir *os.File, number uint64, from int64) ([]byte, error) {
	f, err := openAt(dir, segmentName(number), unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxSegmentFile || st.Size() < from {
		return nil, fmt.Errorf("%s is no segment, or shorter than it was", segmentName(number))
	}
	b := make([]byte, st.Size()-from)
	n, err := f.ReadAt(b, from)
	if err == io.EOF {
		err = nil
	}
	return b[:n], err
}

// stream is one stream as a reader found it.
type stream struct {
	name string // <role>/s<NNN>
	dir  *os.File
	live bool
}

func (s *stream) close() { s.dir.Close() }

// eachStream calls f for every stream of the roles, all of them if none is named.
func eachStream(ledger *os.File, roles []string, f func(*stream) error) error {
	if len(roles) == 0 {
		all, err := names(ledger)
		if err != nil {
			return err
		}
		for _, n := range all {
			if n == RoleRuntime || n == RoleHelper {
				roles = append(roles, n)
			}
		}
	}
	for _, role := range roles {
		dir, err := openDirAt(ledger, role)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		err = eachOfRole(dir, role, f)
		dir.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func eachOfRole(dir *os.File, role string, f func(*stream) error) error {
	all, err := names(dir)
	if err != nil {
		return err
	}
	for _, n := range all {
		if len(n) != 4 || n[0] != 's' || strings.Trim(n[1:], "0123456789") != "" {
			continue
		}
		s := &stream{name: role + "/" + n}
		if s.dir, err = openDirAt(dir, n); err != nil {
			return err
		}
		err = f(s)
		s.close()
		if err != nil {
			return err
		}
	}
	return nil
}

func streamLocked(dir *os.File) (bool, error) {
	f, err := openAt(dir, lockName, unix.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // its maker died before the lock was made
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	return locked(f)
}
