package gitcache

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/gitcache/index"
)

// A tree is complete as soon as it is written, for all that can happen but a power
// failure. To wait until ten thousand files are on the disk takes nearly as long as to
// write them, and a workspace that a power failure ends needs no such tree. So its
// marker names the boot until somebody needs it to last or GC comes by. In another boot
// it is proved by reading every file once, or made anew.

// bootID is this boot of the host, "" if that cannot be read.
var bootID = sync.OnceValue(func() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(b[:min(36, len(b))])
})

// Settle makes the tree durable, for a holder that is to outlive a power failure.
func (p *Pristine) Settle(context.Context) error {
	if p.settled {
		return nil
	}
	p.settled = true
	return p.r.settle(p.Key)
}

// settleHeld settles a tree that the caller holds.
func (r *repo) settleHeld(ctx context.Context, key string) error {
	if m, ok := r.readMarker(key); !ok || m.Boot == "" {
		return nil
	}
	l, err := lock(ctx, r.treePath(key+".lock"), unix.LOCK_SH)
	if err != nil {
		return r.lockError(err)
	}
	defer l.unlock()
	return r.settle(key)
}

// settle makes a tree durable whose marker names this boot. The caller has its lock.
func (r *repo) settle(key string) error {
	m, ok := r.readMarker(key)
	if !ok || m.Boot == "" {
		return nil
	}
	err := syncFS(r.treePath(key))
	if err == nil {
		m.Boot = ""
		var b []byte
		if b, err = json.Marshal(m); err == nil {
			err = writeFile(r.treePath(key+".json"), b, 0o600, true)
		}
	}
	if err == nil {
		err = syncDir(r.path("trees"))
	}
	if err != nil {
		return diskError(opPristine, "the tree cannot be made durable", err)
	}
	return nil
}

// settleTrees settles what nobody is building or removing.
func (r *repo) settleTrees(ctx context.Context) error {
	markers, err := filepath.Glob(globEscape(r.path("trees")) + "/*.json")
	for _, name := range markers {
		key := filepath.Base(name[:len(name)-len(".json")])
		if m, ok := r.readMarker(key); !ok || m.Boot != bootID() || ctx.Err() != nil {
			continue
		}
		l, lockErr := lock(ctx, r.treePath(key+".lock"), unix.LOCK_SH|unix.LOCK_NB)
		if lockErr != nil {
			continue
		}
		if serr := r.settle(key); err == nil {
			err = serr
		}
		l.unlock()
	}
	return err
}

// survived reports whether a tree that was not durable in an earlier boot is whole
// all the same, and settles it. The caller has its lock to itself.
func (r *repo) survived(ctx context.Context, key string) bool {
	m, ok := r.readMarker(key)
	if !ok || m.Boot == "" || m.Boot == bootID() || !r.sameGitFiles(key, m) {
		return false
	}
	top, err := os.Open(r.treePath(key))
	if err != nil {
		return false
	}
	defer top.Close()
	x, err := readIndex(top)
	if err != nil {
		return false
	}
	never := time.Unix(math.MaxUint32, 0) // no entry is racy: all are read below
	if differing, ok := x.Differing(ctx, top, never, 0); !ok || len(differing) > 0 {
		return false
	}
	for i := range x.Len() {
		if e := x.Entry(i); ctx.Err() != nil || !e.IsGitlink() && !holds(top, e) {
			return false
		}
	}
	return r.settle(key) == nil
}

// holds reports whether the entry's file is its object, byte by byte.
func holds(top *os.File, e index.Entry) bool {
	if e.Mode&unix.S_IFMT == unix.S_IFLNK {
		f, err := openBeneath(top, string(e.Path), unix.O_PATH|unix.O_NOFOLLOW, 0)
		if err != nil {
			return false
		}
		defer f.Close()
		target := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(int(f.Fd()), "", target)
		if err != nil {
			return false
		}
		h := blobHash(2*len(e.OID), int64(n))
		h.Write(target[:n])
		return bytes.Equal(h.Sum(nil), e.OID)
	}
	f, err := openBeneath(top, string(e.Path), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return false
	}
	h := blobHash(2*len(e.OID), st.Size())
	if n, err := io.Copy(h, f); err != nil || n != st.Size() {
		return false
	}
	return bytes.Equal(h.Sum(nil), e.OID)
}

// SyncTree makes a directory and all in it durable, file by file: of a file system
// on which others write, syncfs(2) would wait for them too. Several at once: a
// journal commits for many as for one.
func SyncTree(dir string) error {
	var paths []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && (d.IsDir() || d.Type().IsRegular()) {
			paths = append(paths, p)
		}
		return err
	})
	if err != nil {
		return err
	}
	const atOnce = 8
	errs := make([]error, atOnce)
	var wg sync.WaitGroup
	for i := range atOnce {
		wg.Go(func() {
			for n := i; n < len(paths); n += atOnce {
				errs[i] = errors.Join(errs[i], syncDir(paths[n])) // of a file too
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
