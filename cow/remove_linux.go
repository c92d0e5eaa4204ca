package cow

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// RemoveTree removes what is called name below parent: a file, a symbolic link
// itself, a subvolume, or a directory with everything in it. That it is not
// there is success, so it can be called again after any failure or crash.
//
// It goes by open directories only: no symbolic link is followed, no mount is
// crossed, and a process that renames directories meanwhile can make it miss
// things (CodeCleanupIncomplete) but never leave the tree. Modes and, when
// privileged, immutable and append-only flags that are in the way are changed.
// What cannot be removed is left, everything else goes; the diagnostic names
// the first obstacle and its cause.
//
// One thread does it: parallel unlink was measured never to pay, since the
// calls meet at the same directory and journal locks. Who cannot wait renames
// the tree away first.
func RemoveTree(ctx context.Context, parent *os.File, name string, o RemoveOptions) error {
	const op = "cow.remove_tree"
	defer runtime.KeepAlive(parent)
	if err := checkName(op, name); err != nil {
		return err
	}
	dir, err := openBeneath(fd(parent), cname(".\x00"), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return diagnose(op, onTarget, "", err)
	}
	r := &remover{op: op, keepTop: o.KeepTop, dir: dirReaders.Get().(*dirReader)}
	defer dirReaders.Put(r.dir)
	r.stack = []*frame{{fd: dir, names: newCname(name)}}
	defer r.closeAll()
	if err := r.run(ctx); err != nil {
		return err
	}
	if r.failed == 0 {
		return nil
	}
	d := policy.Errorf(policy.CodeCleanupIncomplete, op, "%d entries of the tree could not be removed", r.failed).
		With("count", strconv.Itoa(r.failed)).With("path", r.firstPath).Because(r.firstErr)
	if o.Log != nil {
		o.Log.LogAttrs(ctx, slog.LevelWarn, "tree not wholly removed", slog.String("path", policy.Printable(r.firstPath)), slog.Any("error", d))
	}
	return d
}

const (
	// maxOpenFrames bounds the directories open at once. Those between the top
	// and the last maxOpenFrames are closed, and found again through "..".
	maxOpenFrames = 128
	// maxRounds bounds how often a directory is read again that did not become
	// empty, maxRestarts how often the walk starts over because a directory was
	// moved under it: somebody alive is working against us.
	maxRounds   = 64
	maxRestarts = 32
)

// frame is a directory on the way down. Frame 0 is the parent, which is never
// read; frame 1 the tree's top.
type frame struct {
	name   cname // in the frame above
	fd     int   // -1 when closed for the window
	id     inode
	names  []byte // names of directories still to enter, each with its NUL
	gone   int    // what was removed in this round
	rounds int
	stuck  bool // something inside stays
	opened bool // mode was changed already
}

// take returns the next directory to enter.
func (f *frame) take() cname {
	for i, b := range f.names {
		if b == 0 {
			name := cname(f.names[: i+1 : i+1])
			f.names = f.names[i+1:]
			return name
		}
	}
	return nil
}

type remover struct {
	op        string
	keepTop   bool
	dir       *dirReader
	stack     []*frame
	restarts  int
	lost      bool // too many restarts
	failed    int
	firstPath string
	firstErr  error
}

func (r *remover) last() *frame { return r.stack[len(r.stack)-1] }

// run is the whole walk: go into the next directory, else read more names,
// else come back out of an empty one.
func (r *remover) run(ctx context.Context) error {
	for {
		if err := ctxErr(ctx, r.op); err != nil {
			return err
		}
		f := r.last()
		if name := f.take(); name != nil {
			r.enter(f, name)
			continue
		}
		if len(r.stack) == 1 || r.lost {
			return nil
		}
		if more := r.batch(ctx, f); !more {
			r.leave()
		}
	}
}

// batch unlinks what one getdents64 returned, and keeps directories' names.
func (r *remover) batch(ctx context.Context, f *frame) (more bool) {
	more, err := r.dir.fill(f.fd)
	if err != nil {
		r.fail(nil, err)
		f.stuck = true
		return false
	}
	f.names = f.names[:0]
	for more && ctx.Err() == nil {
		name, typ, ok, err := r.dir.next()
		if err != nil {
			r.fail(nil, err)
			f.stuck = true
			return false
		}
		if !ok {
			break
		}
		if typ == unix.DT_DIR {
			f.names = append(f.names, name...)
			continue
		}
		switch err := r.unlink(f, name, 0); err {
		case nil:
		case unix.EISDIR:
			f.names = append(f.names, name...)
		default:
			r.fail(name, err)
			f.stuck = true
		}
	}
	return more
}

// unlink removes one name and mends what forbids it: a directory without write
// permission (EACCES), an immutable or append-only flag (EPERM).
func (r *remover) unlink(f *frame, name cname, flags int) error {
	err := unlinkat(f.fd, name, flags)
	if err == unix.EACCES && r.openUp(f) {
		err = unlinkat(f.fd, name, flags)
	}
	if err == unix.EPERM && clearFlagsIn(f.fd, name, f != r.stack[0]) {
		err = unlinkat(f.fd, name, flags)
	}
	if err == nil {
		f.gone++
	}
	if err == unix.ENOENT {
		return nil
	}
	return err
}

// openUp gives a directory of the tree a mode that allows everything, once. The
// tree's parent is not ours to change.
func (r *remover) openUp(f *frame) bool {
	if f.opened || f == r.stack[0] {
		return false
	}
	f.opened = true
	return chmodDir(f.fd, 0o700) == nil
}

// fail counts an obstacle at name in the last frame and keeps the first.
func (r *remover) fail(name cname, err error) {
	r.failed++
	if r.firstErr != nil {
		return
	}
	if err == unix.EXDEV || err == unix.EBUSY {
		err = policy.Errorf(policy.CodeNestedFileSystem, r.op, "a mount point or a busy file lies inside the tree").Because(err)
	}
	var path []string
	for _, f := range r.stack[1:] {
		path = append(path, string(f.name.bytes()))
	}
	if name != nil {
		path = append(path, string(name.bytes()))
	}
	r.firstPath, r.firstErr = strings.Join(path, "/"), err
	if len(r.firstPath) > 1024 {
		r.firstPath = r.firstPath[:1024]
	}
}

func (r *remover) closeAll() {
	for _, f := range r.stack {
		if f.fd >= 0 {
			closeFd(f.fd)
		}
	}
}
