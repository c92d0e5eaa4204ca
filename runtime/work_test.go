package runtime

import (
	"strings"
	"testing"
)

func TestParseWork(t *testing.T) {
	oid, digest := strings.Repeat("a", 40), strings.Repeat("b", 64)
	good := "head " + oid + "\ncount 2\ncommit " + oid + "\ntree " + oid + "\nchanged 1\ndiff " + digest + "\n"
	w, ok := parseWork([]byte(good))
	if !ok || w.Head != oid || w.CommitCount != 2 || len(w.Commits) != 1 || w.Tree != oid || w.ChangedPaths != 1 || w.DiffDigest != "sha256:"+digest {
		t.Fatalf("%+v %v", w, ok)
	}
	if w, ok := parseWork([]byte(strings.Replace(good, "changed 1", "changed 0", 1))); !ok || w.DiffDigest != "" {
		t.Fatalf("unchanged: %+v %v", w, ok)
	}
	if w, ok := parseWork([]byte("count 0\ntree " + oid + "\nchanged 0\n")); !ok || w.DiffDigest != "" {
		t.Fatalf("unchanged, and so without a digest: %+v %v", w, ok)
	}
	for name, bad := range map[string]string{
		"empty":          "",
		"cut off":        good[:len(good)/2],
		"no tree":        strings.Replace(good, "tree "+oid+"\n", "", 1),
		"path as head":   strings.Replace(good, "head "+oid, "head ../../etc/passwd", 1),
		"negative count": strings.Replace(good, "count 2", "count -2", 1),
		"twice":          good + "count 0\n",
		"unknown":        good + "escape \x1b[2J\n",
		"no digest":      strings.Replace(good, "diff "+digest+"\n", "", 1),
		"short digest":   strings.Replace(good, digest, digest[:10], 1),
		"many commits":   good + strings.Repeat("commit "+oid+"\n", 2000),
		"long line":      good + strings.Repeat("x", 1<<20),
	} {
		if w, ok := parseWork([]byte(bad)); ok {
			t.Errorf("%s: accepted as %+v", name, w)
		}
	}
}

func FuzzParseWork(f *testing.F) {
	f.Add([]byte("count 2\ntree " + strings.Repeat("a", 40) + "\nchanged 1\ndiff " + strings.Repeat("b", 64) + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		w, ok := parseWork(b)
		if ok && (len(w.Commits) > 1000 || w.CommitCount < 0 || strings.ContainsAny(w.Head+w.Tree+w.DiffDigest, "/\x1b\x00")) {
			t.Fatalf("accepted %+v", w)
		}
	})
}
