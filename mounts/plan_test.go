package mounts

import (
	"errors"
	"os"
	"path"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/policy"
)

func TestValidate(t *testing.T) {
	src := Source{Path: "/usr"}
	good := []Plan{
		{},
		{Ops: []Op{Bind{Target: "/usr", Source: src}, Proc{Target: "/proc"}, Mask{Target: "/proc/kcore"}, ReadOnlyPath{Target: "/proc/sys"}, Dev{Target: "/dev"}}},
		{Ops: []Op{Dir{Target: "/home", Mode: 0o755}, Tmpfs{Target: "/home", Mode: 0o755}, Dir{Target: "/home/worker", Mode: 0o700}}},
		{Ops: []Op{Overlay{Target: "/a/b/c", Data: src, Upper: "u", Work: "w"}, Overlay{Target: "/a/b/d", Lower: []Source{src}}}},
		{Ops: []Op{Bind{Target: "/x", Source: Source{Path: "/", Beneath: "a/b"}}, Symlink{Target: "/bin", To: "usr/bin"}}},
		{Ops: []Op{Bind{Target: "/x", Source: Source{Mount: os.Stdin}}}},
		{Ops: []Op{Proc{Target: "/proc"}}, Layers: []Source{src, {Path: "/", Beneath: "a/b"}, {Mount: os.Stdin}}},
	}
	for i, p := range good {
		if err := p.Validate(); err != nil {
			t.Errorf("good plan %d: %v", i, err)
		}
	}
	bad := map[string][]Op{
		"relative":                 {Dir{Target: "a"}},
		"empty":                    {Dir{}},
		"root":                     {Dir{Target: "/"}},
		"unclean":                  {Dir{Target: "/a/../b"}},
		"trailing slash":           {Dir{Target: "/a/"}},
		"NUL":                      {Dir{Target: "/a\x00b"}},
		"dot-dot at the root":      {Dir{Target: "/.."}},
		"behind a symlink":         {Symlink{Target: "/bin", To: "/etc"}, File{Target: "/bin/x"}},
		"inside a bind":            {Bind{Target: "/ws", Source: src}, Bind{Target: "/ws/a", Source: src}},
		"deep inside a bind":       {Bind{Target: "/ws", Source: src}, Dir{Target: "/ws/a/b"}},
		"inside an overlay":        {Overlay{Target: "/ws", Data: src, Upper: "u", Work: "w"}, Dir{Target: "/ws/a"}},
		"inside a file":            {File{Target: "/f"}, Dir{Target: "/f/a"}},
		"inside a proc":            {Proc{Target: "/proc"}, Dir{Target: "/proc/a"}},
		"twice":                    {Dir{Target: "/a"}, File{Target: "/a"}},
		"bind over a bind":         {Bind{Target: "/a", Source: src}, Bind{Target: "/a", Source: src}},
		"file over implied parent": {Dir{Target: "/a/b"}, File{Target: "/a"}},
		"mask outside proc":        {Mask{Target: "/etc/x"}},
		"read-only outside proc":   {ReadOnlyPath{Target: "/etc"}},
		"setuid mode":              {Dir{Target: "/a", Mode: 0o4755}},
		"setuid file":              {File{Target: "/a", Mode: 0o4755}},
		"huge content":             {File{Target: "/a", Content: make([]byte, 1<<20+1)}},
		"empty link":               {Symlink{Target: "/a"}},
		"no source":                {Bind{Target: "/a"}},
		"relative source":          {Bind{Target: "/a", Source: Source{Path: "usr"}}},
		"unclean source":           {Bind{Target: "/a", Source: Source{Path: "/usr/../etc"}}},
		"beneath leads out":        {Bind{Target: "/a", Source: Source{Path: "/usr", Beneath: "../etc"}}},
		"beneath is absolute":      {Bind{Target: "/a", Source: Source{Path: "/usr", Beneath: "/etc"}}},
		"beneath is unclean":       {Bind{Target: "/a", Source: Source{Path: "/usr", Beneath: "a/../.."}}},
		"beneath in a mount":       {Bind{Target: "/a", Source: Source{Mount: os.Stdin, Beneath: "x"}}},
		"overlay of nothing":       {Overlay{Target: "/a"}},
		"overlay, same dirs":       {Overlay{Target: "/a", Data: src, Upper: "u", Work: "u"}},
		"overlay, no work":         {Overlay{Target: "/a", Data: src, Upper: "u"}},
		"overlay, option in name":  {Overlay{Target: "/a", Data: src, Upper: "u,index=on", Work: "w"}},
		"overlay, upper leads out": {Overlay{Target: "/a", Data: src, Upper: "../u", Work: "w"}},
		"overlay, bottom leads up": {Overlay{Target: "/a", Data: src, Upper: "u", Work: "w", Bottom: ".."}},
		"overlay, bottom is upper": {Overlay{Target: "/a", Data: src, Upper: "u", Work: "w", Bottom: "u"}},
		"overlay, bottom alone":    {Overlay{Target: "/a", Lower: []Source{src}, Bottom: "b"}},
		"overlay, upper alone":     {Overlay{Target: "/a", Lower: []Source{src}, Upper: "u"}},
	}
	for name, ops := range bad {
		err := Plan{Ops: ops}.Validate()
		if d := policy.AsDiagnostic(err); err == nil || d.Code != policy.CodePolicyInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (Plan{Ops: make([]Op, maxOps+1)}).Validate(); err == nil {
		t.Error("an endless plan was accepted")
	}
}

// Whatever is accepted has targets that stay what they look like: no target
// runs through a link, a foreign tree or an earlier target's file.
func FuzzValidate(f *testing.F) {
	f.Add("/a", "/a/b", "/a/b/c", uint8(0x1b))
	f.Add("/proc", "/proc/sys", "/dev", uint8(0x42))
	f.Add("/bin", "/bin/sh", "//", uint8(0xff))
	f.Fuzz(func(t *testing.T, a, b, c string, kinds uint8) {
		mk := func(target string, k uint8) Op {
			switch k & 3 {
			case 0:
				return Dir{Target: target, Mode: 0o755}
			case 1:
				return Symlink{Target: target, To: "/etc"}
			case 2:
				return Bind{Target: target, Source: Source{Path: "/usr"}}
			}
			return File{Target: target}
		}
		p := Plan{Ops: []Op{mk(a, kinds), mk(b, kinds>>2), mk(c, kinds>>4)}}
		if p.Validate() != nil {
			return
		}
		for i, op := range p.Ops {
			w := op.Where()
			if !path.IsAbs(w) || path.Clean(w) != w || w == "/" || strings.ContainsRune(w, 0) {
				t.Fatalf("accepted target %q", w)
			}
			for _, earlier := range p.Ops[:i] {
				if _, isDir := earlier.(Dir); !isDir && strings.HasPrefix(w+"/", earlier.Where()+"/") {
					t.Fatalf("%q accepted through the %s %q", w, earlier.Kind(), earlier.Where())
				}
			}
		}
	})
}

func TestValidateLayers(t *testing.T) {
	for name, layers := range map[string][]Source{
		"empty":    {{}},
		"relative": {{Path: "usr"}},
		"upwards":  {{Path: "/usr", Beneath: "../etc"}},
		"too many": make([]Source, maxLayers+1),
	} {
		if err := (Plan{Layers: layers}).Validate(); !errors.Is(err, policy.CodePolicyInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
