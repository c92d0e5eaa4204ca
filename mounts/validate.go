package mounts

import (
	"path"
	"strings"

	"yoi.dev/yoi-runtime/policy"
)

const opPlan = "mounts.plan"

// maxOps bounds a plan: each operation costs the child a few system calls.
const maxOps = 4096

// maxLayers keeps the option that names an overlay's layers within the 255 bytes
// that fsconfig(2) takes.
const maxLayers = 64

// Validate refuses a plan that could not be carried out safely: targets must be
// clean and absolute, in order (parents before children), made once, and never
// lie behind a symbolic link of the plan or below something whose content
// others control (a Bind, an Overlay, a Proc).
func (p Plan) Validate() error {
	if len(p.Ops) > maxOps {
		return policy.Errorf(policy.CodePolicyInvalid, opPlan, "the mount plan has more than %d operations", maxOps)
	}
	if len(p.Layers) > maxLayers {
		return policy.Errorf(policy.CodePolicyInvalid, opPlan, "the root has more than %d layers", maxLayers)
	}
	for _, l := range p.Layers {
		if why := checkSource(l); why != "" {
			return policy.Errorf(policy.CodePolicyInvalid, opPlan, "a layer of the root %s", why)
		}
	}
	v := validator{made: map[string]Op{}}
	for _, op := range p.Ops {
		if err := v.check(op); err != nil {
			return err
		}
	}
	return nil
}

type validator struct{ made map[string]Op }

func (v *validator) check(op Op) error {
	t := op.Where()
	bad := func(why string) error {
		return policy.Errorf(policy.CodePolicyInvalid, opPlan, "the %s's target %q %s", op.Kind(), policy.Printable(t), why).
			With("target", t)
	}
	switch {
	case t == "" || t[0] != '/' || strings.ContainsRune(t, 0) || len(t) > 4000:
		return bad("is not an absolute path")
	case path.Clean(t) != t:
		return bad("is not clean")
	case t == "/":
		return bad("is the root itself")
	}
	if _, again := v.made[t]; again {
		if _, isDir := v.made[t].(Dir); !isDir || !isMount(op) {
			return bad("is made twice")
		}
	}
	if why := v.parents(op, t); why != "" {
		return bad(why)
	}
	if why := checkFields(op); why != "" {
		return bad(why)
	}
	v.made[t] = op
	return nil
}

// parents looks at what each ancestor of t is.
func (v *validator) parents(op Op, t string) string {
	inProc := false
	for dir := path.Dir(t); dir != "/"; dir = path.Dir(dir) {
		made, ok := v.made[dir]
		if !ok {
			v.made[dir] = Dir{Target: dir, Mode: 0o755}
			continue
		}
		switch made.(type) {
		case Dir, Tmpfs, Dev:
		case Proc:
			inProc = true
		case Symlink:
			return "lies behind a symbolic link of the plan"
		default:
			return "lies inside another " + made.Kind()
		}
	}
	switch op.(type) {
	case Mask, ReadOnlyPath:
		if !inProc {
			return "is not inside a proc of the plan"
		}
	default:
		if inProc {
			return "lies inside a proc"
		}
	}
	return ""
}

func isMount(op Op) bool {
	switch op.(type) {
	case Bind, Tmpfs, Proc, DevPts, Overlay, Dev, Secrets:
		return true
	}
	return false
}

func checkFields(op Op) string {
	switch o := op.(type) {
	case Dir:
		return checkMode(o.Mode)
	case Tmpfs:
		return checkMode(o.Mode)
	case File:
		if len(o.Content) > 1<<20 {
			return "has more than 1 MiB of content"
		}
		return checkMode(o.Mode)
	case Symlink:
		if o.To == "" || len(o.To) > 4000 || strings.ContainsRune(o.To, 0) {
			return "has no valid link content"
		}
	case Bind:
		return checkSource(o.Source)
	case Overlay:
		return checkOverlay(o)
	case Secrets:
		return checkSecrets(o)
	}
	return ""
}

func checkSecrets(o Secrets) string {
	seen := make(map[string]bool, len(o.Files))
	for _, f := range o.Files {
		switch {
		case !beneath(f.Name) || strings.Contains(f.Name, "/") || len(f.Name) > 255:
			return "has a file whose name is not a plain name"
		case seen[f.Name]:
			return "has two files of one name"
		case len(f.Content) > 1<<20:
			return "has more than 1 MiB of content"
		}
		seen[f.Name] = true
	}
	return ""
}

func checkMode(m uint32) string {
	if m&^0o1777 != 0 {
		return "has mode bits beyond 01777"
	}
	return ""
}

func checkOverlay(o Overlay) string {
	if len(o.Lower) > maxLayers {
		return "has more than 64 lower layers"
	}
	for _, l := range o.Lower {
		if why := checkSource(l); why != "" {
			return why
		}
	}
	if o.Data == (Source{}) {
		if len(o.Lower) == 0 || o.Upper != "" || o.Work != "" || o.Bottom != "" {
			return "has no layers"
		}
		return ""
	}
	// ',', ':' and '\' have a meaning in overlayfs's option strings.
	if o.Upper == o.Work || !beneath(o.Upper) || !beneath(o.Work) || strings.ContainsAny(o.Upper+o.Work+o.Bottom, `,:\`) {
		return "needs an upper and a work directory, two plain names beneath its data"
	}
	if o.Bottom != "" && (!beneath(o.Bottom) || o.Bottom == o.Upper || o.Bottom == o.Work) {
		return "needs as its bottom a plain name beneath its data, which is none of the others"
	}
	return checkSource(o.Data)
}

func checkSource(s Source) string {
	switch {
	case s.Mount == nil && (s.Path == "" || s.Path[0] != '/' || path.Clean(s.Path) != s.Path || strings.ContainsRune(s.Path, 0)):
		return "has a source that is not a clean absolute path"
	case s.Mount != nil && s.Beneath != "":
		return "has a detached mount as source, which cannot be descended into"
	case s.Beneath != "" && !beneath(s.Beneath):
		return "has a source that is not beneath its directory"
	}
	return ""
}

// beneath reports whether s is a clean relative path that leads down.
func beneath(s string) bool {
	if s == "" || s[0] == '/' || len(s) > 4000 || path.Clean(s) != s || strings.ContainsRune(s, 0) {
		return false
	}
	return s != "." && s != ".." && !strings.HasPrefix(s, "../")
}
