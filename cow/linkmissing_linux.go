package cow

import (
	"context"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// mostLinkDepth bounds LinkMissing's recursion, with three descriptors a level.
const mostLinkDepth = 128

// LinkMissing completes target, a copy of an overlay's upper layer, from base, its
// lower one: what target lacks gets a second name of base's file, unless upper
// hides it by a whiteout or an opaque directory. Nothing may write to base's
// files any more. Directories deeper than a bound are left out: this is for
// caches, which may lack anything.
func LinkMissing(ctx context.Context, target, base, upper *os.File) error {
	const op = "cow.link_missing"
	defer runtime.KeepAlive(target)
	defer runtime.KeepAlive(base)
	defer runtime.KeepAlive(upper)
	l := &linker{op: op}
	return l.directory(ctx, fd(target), fd(base), fd(upper), 0)
}

type linker struct{ op string }

// directory merges one directory; upper is -1 where the upper layer has none.
func (l *linker) directory(ctx context.Context, target, base, upper, depth int) error {
	if err := ctxErr(ctx, l.op); err != nil {
		return err
	}
	names, err := l.names(base)
	if err != nil {
		return diagnose(l.op, onSource, "", err)
	}
	for _, name := range names {
		if err := l.entry(ctx, target, base, upper, depth, name); err != nil {
			return diagnose(l.op, onTarget, string(name.bytes()), err)
		}
	}
	return nil
}

func (l *linker) names(dir int) ([]cname, error) {
	own, err := openBeneath(dir, cname(".\x00"), openDir)
	if err != nil {
		return nil, err
	}
	defer closeFd(own)
	r := newDirReader()
	var out []cname
	for {
		more, err := r.fill(own)
		if err != nil || !more {
			return out, err
		}
		for {
			name, _, ok, err := r.next()
			if err != nil {
				return nil, err
			}
			if !ok {
				break
			}
			out = append(out, append(cname(nil), name...))
		}
	}
}

func (l *linker) entry(ctx context.Context, target, base, upper, depth int, name cname) error {
	var b, u, t unix.Statx_t
	if err := statxAt(base, name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE|unix.STATX_MODE|unix.STATX_MTIME, &b); err != nil {
		return err
	}
	inUpper := upper >= 0 && statxAt(upper, name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &u) == nil
	inTarget := statxAt(target, name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &t) == nil
	if b.Mode&unix.S_IFMT != unix.S_IFDIR {
		if inUpper || inTarget {
			return nil
		}
		return linkOrSkip(linkat(base, name, target, name))
	}
	if inUpper && u.Mode&unix.S_IFMT != unix.S_IFDIR { // a whiteout, or a file in its place
		return nil
	}
	if depth >= mostLinkDepth {
		return nil
	}
	from, err := openBeneath(base, name, openDir)
	if err != nil {
		return err
	}
	defer closeFd(from)
	above := -1
	if inUpper {
		if above, err = openBeneath(upper, name, openDir); err != nil {
			return err
		}
		defer closeFd(above)
		if opaque(above) {
			return nil
		}
	}
	if !inTarget {
		if err := mkdirat(target, name, 0o700); err != nil {
			return err
		}
	}
	to, err := openBeneath(target, name, openDir)
	if err != nil {
		return err
	}
	defer closeFd(to)
	if err := l.directory(ctx, to, from, above, depth+1); err != nil {
		return err
	}
	if inTarget {
		return nil
	}
	return l.attributes(to, from, uint32(b.Mode)&0o7777, b.Mtime)
}

// attributes gives a directory that only base has base's owner, mode and time.
func (l *linker) attributes(to, from int, mode uint32, mtime unix.StatxTimestamp) error {
	var st unix.Statx_t
	if err := statxFd(from, dirMask, &st); err != nil {
		return err
	}
	if err := fchown(to, st.Uid, st.Gid); err != nil && err != unix.EPERM {
		return err
	}
	if err := fchmod(to, mode); err != nil {
		return err
	}
	return setMtime(to, mtime)
}

// linkOrSkip drops a file with too many names, or one that may not get another.
func linkOrSkip(err error) error {
	switch err {
	case unix.EMLINK, unix.EEXIST, unix.EPERM:
		return nil
	}
	return err
}

// opaque says whether an upper layer's directory hides the one below it. The
// attribute is overlayfs's: a Worker's own of that name is stored under another.
func opaque(dir int) bool {
	buf := make([]byte, 8)
	n, err := fgetxattr(dir, newCname("user.overlay.opaque"), buf)
	return err == nil && n == 1 && buf[0] == 'y'
}
