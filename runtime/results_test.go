package runtime

import (
	"reflect"
	"strings"
	"testing"
)

var oidA, oidB = strings.Repeat("a", 40), strings.Repeat("b", 40)

func TestParseDiff(t *testing.T) {
	answer := oidA + "\x00\x00" +
		":100644 100755 " + oidA + " " + oidB + " M\x00a b\x00" +
		":100644 100644 " + oidA + " " + oidB + " R090\x00old\n\x00new\xff\x00" +
		":000000 120000 " + oidA + " " + oidB + " A\x00link\x00" +
		"1\t2\ta b\x00" + "0\t1\t\x00old\n\x00new\xff\x00" + "-\t-\tlink\x00"
	f := &fields{rest: answer}
	d := f.diff()
	want := RepositoryDiff{Tree: oidA, FileCount: 3, Additions: 1, Deletions: 3, Files: []DiffFile{
		{Path: "a b", Status: "modified", OldMode: "100644", NewMode: "100755", Additions: 1, Deletions: 2},
		{Path: `"new\377"`, OldPath: `"old\n"`, Status: "renamed", OldMode: "100644", NewMode: "100644", Deletions: 1},
		{Path: "link", Status: "added", OldMode: "000000", NewMode: "120000", Binary: true},
	}}
	if f.bad || !reflect.DeepEqual(d, want) {
		t.Errorf("bad %v\n%+v\nwant\n%+v", f.bad, d, want)
	}
	for name, bad := range map[string]string{
		"empty": "", "no tree": "main\x00\x00", "cut off": answer[:len(answer)-3], "unknown status": oidA + "\x00\x00:100644 100644 a b X\x00p\x00",
		"more numbers than files": answer + "1\t1\tx\x00", "negative": oidA + "\x00\x00:100644 100644 a b M\x00p\x00-5\t1\tp\x00",
		"no words": oidA + "\x00\x00:\x00", "mode": oidA + "\x00\x00:10064x 100644 a b M\x00p\x00",
	} {
		f := &fields{rest: bad}
		if d := f.diff(); !f.bad {
			t.Errorf("%s: accepted as %+v", name, d)
		}
	}
}

func TestParseStatus(t *testing.T) {
	f := &fields{rest: oidA + "\x00work\x1b[2J\x003\x00" + "1 .M N... 100644 100644 100644 " + oidA + " " + oidA + " with space\x00" +
		"u UU N... 100644 100644 100644 100644 " + oidA + " " + oidA + " " + oidA + " both\x00? new\x00"}
	s := f.status()
	if f.bad || strings.ContainsRune(s.Branch, 0x1b) || s.CommitCount != 3 || s.Unstaged != 1 || s.Conflicted != 1 || s.Untracked != 1 || s.Staged != 0 ||
		s.Entries[0] != (StatusEntry{"with space", ".", "M"}) || s.Entries[2] != (StatusEntry{"new", "?", "?"}) {
		t.Errorf("bad %v %+v", f.bad, s)
	}
	for name, bad := range map[string]string{
		"kind": "\x00\x000\x00x y\x00", "short": "\x00\x000\x001 .M N...\x00", "no path": "\x00\x000\x00? \x00", "letters": "\x00\x000\x001 M N... 1 1 1 a a p\x00",
	} {
		f := &fields{rest: bad}
		if s := f.status(); !f.bad {
			t.Errorf("%s: accepted as %+v", name, s)
		}
	}
}

func FuzzResults(f *testing.F) {
	f.Add(oidA + "\x00\x00:100644 100644 a b R1\x00o\x00n\x001\t1\t\x00o\x00n\x00")
	f.Add(oidA + "\x00b\x001\x001 .M N... 1 1 1 a a p\x00? q\x00")
	f.Add("1\x00" + oidA + "\x00" + oidB + "\x00" + oidB + "\x00n\x00e\x001\x00n\x00e\x002\x00s\x00")
	f.Fuzz(func(t *testing.T, s string) {
		d := &fields{rest: s}
		if v := d.diff(); !d.bad && (v.FileCount < len(v.Files) || v.Additions < 0 || v.Deletions < 0) {
			t.Errorf("%+v", v)
		}
		st := &fields{rest: s}
		v := st.status()
		for _, e := range v.Entries {
			if !st.bad && strings.ContainsAny(e.Path+e.Index+e.Worktree+v.Branch, "\x1b\x00\n") {
				t.Errorf("%+v", e)
			}
		}
		c := &fields{rest: s}
		if w := c.commits(3); !c.bad && len(w.Commits) > 3 {
			t.Errorf("%+v", w)
		}
	})
}
