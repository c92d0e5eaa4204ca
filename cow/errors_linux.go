package cow

import (
	"context"
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// checkName refuses what is not one path component.
func checkName(op, name string) error {
	if name == "" || name == "." || name == ".." || len(name) > 255 || strings.ContainsAny(name, "/\x00") {
		return policy.Errorf(policy.CodeBadRequest, op, "%q is not a name of one path component", policy.Printable(name))
	}
	return nil
}

// side says on which tree a system call failed: the same errno means different
// things to whoever has to mend it.
type side int

const (
	onSource side = iota
	onTarget
)

// diagnose turns an errno into a diagnostic. rel is the path inside the tree.
func diagnose(op string, s side, rel string, err error) error {
	var d *policy.Diagnostic
	if errors.As(err, &d) {
		return err
	}
	code, what := policy.CodeCopyFailed, "the file system refused an operation"
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return canceled(op, err)
	case errors.Is(err, unix.ENOSPC):
		code, what = policy.CodeDiskFull, "no space is left on the file system"
	case errors.Is(err, unix.EDQUOT):
		code, what = policy.CodeQuotaExceeded, "the disk quota is used up"
	case errors.Is(err, unix.ENAMETOOLONG):
		code, what = policy.CodePathTooLong, "a path is too long for the file system"
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		what = "too many files are open"
	case s == onTarget && errors.Is(err, unix.EEXIST) && rel == "":
		code, what = policy.CodeConflict, "the target exists already"
	case s == onTarget && errors.Is(err, unix.EEXIST):
		code, what = policy.CodePathCaseCollision, "the target file system holds two of the tree's names for one"
	case s == onSource && errors.Is(err, unix.EXDEV):
		code, what = policy.CodeNestedFileSystem, "a mount point lies inside the tree"
	case s == onSource && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ESTALE)):
		code, what = policy.CodeSourceChanged, "an entry changed while the tree was read"
	case s == onSource && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)):
		code, what = policy.CodeSourceUnreadable, "an entry of the tree cannot be read"
	}
	d = policy.Errorf(code, op, "%s", what).Because(err)
	if rel != "" {
		d.With("path", rel)
	}
	return d
}

func canceled(op string, err error) error {
	return policy.Errorf(policy.CodeCanceled, op, "the operation was canceled").Because(err)
}

// ctxErr is diagnose for a context.
func ctxErr(ctx context.Context, op string) error {
	if err := ctx.Err(); err != nil {
		return canceled(op, err)
	}
	return nil
}
