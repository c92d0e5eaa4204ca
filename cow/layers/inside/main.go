// Package inside is the program yoi-layers: one request of package layers,
// confined before it looks at the archive.
package inside

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/cow/layers"
	"yoi.dev/yoi-runtime/cow/layers/image"
	"yoi.dev/yoi-runtime/cow/layers/store"
	"yoi.dev/yoi-runtime/policy"
)

// maxRequest bounds the request's line.
const maxRequest = 1 << 20

// Main answers the request on standard input and returns the exit code.
func Main() int {
	if store.Reexec() {
		return 0
	}
	in := bufio.NewReaderSize(io.LimitReader(os.Stdin, maxRequest), 4096)
	out := json.NewEncoder(os.Stdout)
	done, err := serve(in, out)
	if err != nil {
		d := policy.AsDiagnostic(err)
		fmt.Fprintln(os.Stderr, withoutPaths(err))
		_ = out.Encode(layers.Answer{Error: d}) // whoever asked has gone
		return 1
	}
	if err := out.Encode(layers.Answer{Done: &done}); err != nil {
		return 1
	}
	return 0
}

func serve(in *bufio.Reader, out *json.Encoder) (layers.Done, error) {
	var req layers.Request
	if err := readLine(in, &req); err != nil {
		return layers.Done{}, err
	}
	if os.Getpid() != 1 {
		return layers.Done{}, policy.Errorf(policy.CodeImageProgramFailed, "layers.serve", "yoi-layers is started by the other programs").
			WithHint("Use yoi image.")
	}
	unix.CloseOnExec(layers.LockFD)
	unix.CloseOnExec(layers.ArchiveFD)
	if err := confine(req); err != nil {
		return layers.Done{}, err
	}
	switch req.Op {
	case layers.OpImport:
		return importImage(req, in, out)
	case layers.OpRemove:
		return layers.Done{}, removeLayers(req)
	}
	return layers.Done{}, policy.Errorf(policy.CodeBadRequest, "layers.serve", "%q is no request", policy.Printable(req.Op))
}

// withStore opens the store, which makes directories in it: never before what is
// to be done there has been written down.
func withStore(req layers.Request, f func(*store.Store) error) error {
	s, err := store.Open(req.Driver, storeAt, runAt)
	if err != nil {
		return err
	}
	return errors.Join(f(s), s.Close())
}

func readLine(in *bufio.Reader, v any) error {
	line, err := in.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, v)
	}
	if err != nil {
		return policy.Errorf(policy.CodeCanceled, "layers.serve", "no request came").Because(err)
	}
	return nil
}

// endWithCaller ends this program, and with it its pid namespace, when whoever
// started it has gone: standard input ends then.
func endWithCaller(in *bufio.Reader) {
	go func() {
		_, _ = io.Copy(io.Discard, in)
		os.Exit(1)
	}()
}

func importImage(req layers.Request, in *bufio.Reader, out *json.Encoder) (layers.Done, error) {
	archive := os.NewFile(layers.ArchiveFD, "archive")
	st, err := archive.Stat()
	if err != nil {
		return layers.Done{}, policy.Errorf(policy.CodeImageProgramFailed, "layers.import", "the archive cannot be read").Because(err)
	}
	limits := req.Limits.Normalize()
	img, err := image.Open(archive, st.Size(), req.Select, limits)
	if err != nil {
		return layers.Done{}, err
	}
	plan := layers.Plan{Format: img.Format, Digest: string(img.Digest), Ref: img.Ref, Env: img.Env}
	for _, l := range img.Layers {
		plan.Layers = append(plan.Layers, l.Chain)
	}
	if err := out.Encode(layers.Answer{Plan: &plan}); err != nil {
		return layers.Done{}, err
	}
	var agreed layers.Go
	if err := readLine(in, &agreed); err != nil {
		return layers.Done{}, err
	}
	endWithCaller(in)
	filter := &image.Filter{Limits: limits, Single: req.Single}
	err = withStore(req, func(s *store.Store) error { return addLayers(s, filter, img.Layers, agreed.Reuse, out) })
	c := filter.Counts
	return layers.Done{Bytes: c.Bytes, Entries: c.Entries, Warnings: warnings(c)}, err
}

// addLayers unpacks the layers, lowest first, and makes them durable.
func addLayers(s *store.Store, filter *image.Filter, list []*image.Layer, whole []string, out *json.Encoder) error {
	parent := ""
	for i, l := range list {
		if err := out.Encode(layers.Answer{Progress: &layers.Progress{Layer: i + 1, Layers: len(list)}}); err != nil {
			return err
		}
		if err := addLayer(s, filter, l, parent, slices.Contains(whole, l.Chain) && s.Has(l.Chain)); err != nil {
			return err
		}
		parent = l.Chain
	}
	return s.Sync()
}

// addLayer unpacks one layer. One that the store has whole is only read: its
// digests are compared, and the filter learns what it holds.
func addLayer(s *store.Store, filter *image.Filter, l *image.Layer, parent string, reuse bool) error {
	r, err := l.Read(filter.Limits)
	if err != nil {
		return err
	}
	defer r.Close()
	if reuse {
		if err := filter.Layer(r, io.Discard); err != nil {
			return err
		}
		return r.Finish()
	}
	pr, pw := io.Pipe()
	filtered := make(chan error, 1)
	go func() {
		err := filter.Layer(r, pw)
		pw.CloseWithError(err)
		filtered <- err
	}()
	err = s.Add(l.Chain, parent, pr)
	pr.CloseWithError(errStopped)
	// A refusal is the cause of whatever the library says about its input.
	if ferr := <-filtered; ferr != nil && !errors.Is(ferr, errStopped) {
		return ferr
	}
	if err != nil {
		return err
	}
	return r.Finish()
}

var errStopped = errors.New("the layer is not read any further")

func removeLayers(req layers.Request) error {
	if err := layers.CheckLayers(req.Layers); err != nil {
		return err
	}
	return withStore(req, func(s *store.Store) error {
		for _, l := range req.Layers {
			if err := s.Remove(l); err != nil {
				return err
			}
		}
		return s.Sync()
	})
}

// warnings say what of the image has no effect in a sandbox.
func warnings(c image.Counts) (out []policy.Diagnostic) {
	for _, w := range []struct {
		n    int64
		what string
	}{
		{c.Setuid, "setuid or setgid bits were taken away"},
		{c.Xattrs, "extended attributes were left out"},
		{c.Specials, "device nodes or FIFOs were left out"},
		{c.Owners, "files have owners beyond 65535, and are nobody's"},
	} {
		if w.n > 0 {
			out = append(out, *policy.Warnf(policy.CodeImageNeutralised, "layers.import", "%d %s", w.n, w.what))
		}
	}
	return out
}
