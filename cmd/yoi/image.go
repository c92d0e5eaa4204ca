package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

func (a *app) imageCommand() *cobra.Command {
	return groupCommand("image", "Import, list and remove base images", "  yoi image import ./debian-layout --name debian-12\n  yoi image list",
		a.imageImport(), a.imageList(), a.imageShow(), a.imageRemove())
}

func (a *app) imageImport() *cobra.Command {
	var name, selected, driver string
	c := &cobra.Command{
		Use: "import ARCHIVE", Short: "Import a base image: an OCI layout, an OCI or docker archive, or a root file system's tar file",
		Long: `Import a base image, to be a sandbox's root file system: yoi run --image NAME.
ARCHIVE is the directory of an OCI layout, or a tar file, which may be gzipped: of
an OCI layout, of docker save or podman save, or of a root file system. - reads it
from standard input: podman save alpine | yoi image import -. No registry is asked.`,
		Example: "  yoi image import ./debian-layout --name debian-12\n  yoi image import alpine.tar\n  yoi image import rootfs.tar.gz --name base --driver vfs",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			archive, err := a.openArchive(argv[0])
			if err != nil {
				return err
			}
			defer archive.Close()
			req := runtime.ImportImageRequest{Name: policy.ImageName(name), Select: selected, Driver: policy.ImageDriver(driver), Progress: a.progress.show}
			return a.withRecovered(cmd.Context(), func(s runtime.Service) error {
				img, err := s.ImportImage(cmd.Context(), req, a.watched(s, archive))
				a.progress.clear()
				if err != nil {
					return err
				}
				a.printWarnings(img.Diagnostics)
				if a.json {
					return a.printJSON(img)
				}
				return a.showImages([]runtime.Image{img})
			})
		},
	}
	c.Flags().StringVar(&name, "name", "", "the image's `NAME` (default: the archive's own, debian:12 as debian-12)")
	c.Flags().StringVar(&selected, "select", "", "which of several images: a `REFERENCE` or digest")
	c.Flags().StringVar(&driver, "driver", "", "how layers are kept: `DRIVER` overlay (default) or vfs")
	return c
}

func (a *app) imageList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the imported images", Example: "  yoi image list --json", Aliases: []string{"ls"},
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withRecovered(cmd.Context(), func(s runtime.Service) error {
				list, err := s.ListImages(cmd.Context())
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(append([]runtime.Image{}, list...))
				}
				return a.showImages(list)
			})
		},
	}
}

func (a *app) showImages(list []runtime.Image) error {
	rows := make([][]string, 0, len(list))
	for _, i := range list {
		_, hex, _ := strings.Cut(i.Digest, ":")
		rows = append(rows, []string{string(i.Name), hex[:min(12, len(hex))], string(i.Driver), fmt.Sprint(i.Layers), size(i.Bytes), ago(i.CreatedAt)})
	}
	return a.table([]string{"NAME", "DIGEST", "DRIVER", "LAYERS", "SIZE", "IMPORTED"}, rows)
}

func (a *app) imageShow() *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Short: "Show an image", Example: "  yoi image show debian-12",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				i, err := s.GetImage(cmd.Context(), policy.ImageName(argv[0]))
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(i)
				}
				if err := a.pairs("name", string(i.Name), "digest", i.Digest, "reference", i.Ref, "format", i.Format, "driver", string(i.Driver),
					"layers", fmt.Sprint(i.Layers), "entries", fmt.Sprint(i.Entries), "size", size(i.Bytes), "imported", ago(i.CreatedAt), "id", string(i.ID)); err != nil {
					return err
				}
				a.printWarnings(i.Diagnostics)
				return nil
			})
		},
	}
}

func (a *app) imageRemove() *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME", Short: "Remove an image that no workspace stands on", Example: "  yoi image rm debian-12", Aliases: []string{"rm"},
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.withRecovered(cmd.Context(), func(s runtime.Service) error {
				if err := s.RemoveImage(cmd.Context(), policy.ImageName(argv[0])); err != nil {
					return err
				}
				return a.removed(argv[0])
			})
		},
	}
}

// rootFlags are the two ways to name a sandbox's root file system.
type rootFlags struct{ image, root string }

func (f *rootFlags) add(fl *pflag.FlagSet) {
	fl.StringVar(&f.image, "image", "", "the base image `NAME` as the root file system; see yoi image")
	fl.StringVar(&f.root, "root", "", "what the root file system is made of: `PROFILE` system (default), minimal or image:NAME")
}

func (f rootFlags) profile() (policy.RootProfile, error) {
	switch {
	case f.image == "":
		return policy.RootProfile(f.root), nil
	case f.root != "":
		return "", usageError{errors.New("--image and --root exclude each other")}
	}
	return policy.RootImage(policy.ImageName(f.image)), nil
}

// openArchive opens what the import reads: a plain file as it is, so that the
// embedded runtime need not copy it, and anything else as a stream.
func (a *app) openArchive(name string) (io.ReadCloser, error) {
	if name == "-" {
		return a.plainArchive(os.Stdin)
	}
	f, err := os.Open(name)
	var st fs.FileInfo
	if err == nil {
		st, err = f.Stat()
	}
	if err != nil {
		return nil, policy.Errorf(policy.CodeSourceUnreadable, "yoi.image", "the archive cannot be read").Because(err)
	}
	if st.IsDir() {
		f.Close()
		return layoutArchive(name)
	}
	return a.plainArchive(f)
}

// plainArchive takes gzip off.
func (a *app) plainArchive(f *os.File) (io.ReadCloser, error) {
	var magic [2]byte
	st, err := f.Stat()
	if err == nil && st.Mode().IsRegular() {
		if n, _ := f.ReadAt(magic[:], 0); n < 2 || !bytes.Equal(magic[:], []byte{0x1f, 0x8b}) {
			return f, nil
		}
	}
	b := bufio.NewReaderSize(f, 64<<10)
	if head, _ := b.Peek(2); !bytes.Equal(head, []byte{0x1f, 0x8b}) {
		return stream{b, f}, nil
	}
	z, err := gzip.NewReader(b)
	if err != nil {
		return nil, policy.Errorf(policy.CodeImageInvalid, "yoi.image", "the archive cannot be decompressed").Because(err)
	}
	return stream{z, f}, nil
}

// watched shows how much of an archive has been sent or copied. A plain file that
// the embedded runtime reads where it is stays what it is.
func (a *app) watched(s runtime.Service, archive io.Reader) io.Reader {
	f, isFile := archive.(*os.File)
	if _, embedded := s.(*runtime.Runtime); embedded && isFile {
		return archive
	}
	w := &watched{r: archive, show: a.progress.show}
	if isFile {
		if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
			w.total = st.Size()
		}
	}
	return w
}

type watched struct {
	r           io.Reader
	done, total int64
	show        func(runtime.RunProgress)
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.r.Read(b)
	w.done += int64(n)
	if err == io.EOF {
		w.show(runtime.RunProgress{Phase: "unpacking"})
	} else {
		w.show(runtime.RunProgress{Phase: "reading the archive, bytes", Done: w.done, Total: w.total})
	}
	return n, err
}

// stream reads from one thing and closes another.
type stream struct {
	io.Reader
	io.Closer
}

// layoutArchive makes a tar stream of an OCI layout: its two documents and its
// blobs, and no other file of the directory, nor what a link leads to.
func layoutArchive(dir string) (io.ReadCloser, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, policy.Errorf(policy.CodeSourceUnreadable, "yoi.image", "the directory cannot be read").Because(err)
	}
	names, err := layoutFiles(root)
	if err != nil {
		root.Close()
		return nil, err
	}
	pr, pw := io.Pipe()
	go func() {
		defer root.Close()
		w := tar.NewWriter(pw)
		for _, n := range names {
			if err := addFile(w, root, n); err != nil {
				pw.CloseWithError(policy.Errorf(policy.CodeSourceUnreadable, "yoi.image", "%q cannot be read", policy.Printable(n)).Because(err))
				return
			}
		}
		pw.CloseWithError(w.Close())
	}()
	return pr, nil
}

func layoutFiles(root *os.Root) ([]string, error) {
	names := []string{"oci-layout", "index.json"}
	for _, n := range names {
		if st, err := root.Lstat(n); err != nil || !st.Mode().IsRegular() {
			return nil, policy.Errorf(policy.CodeImageInvalid, "yoi.image", "the directory is no OCI layout: it has no %s", n).Because(err)
		}
	}
	err := fs.WalkDir(root.FS(), "blobs", func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			names = append(names, filepath.ToSlash(name))
		}
		return err
	})
	if err != nil {
		return nil, policy.Errorf(policy.CodeImageInvalid, "yoi.image", "the layout's blobs cannot be read").Because(err)
	}
	return names, nil
}

func addFile(w *tar.Writer, root *os.Root, name string) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: st.Size()}); err != nil {
		return err
	}
	_, err = io.CopyN(w, f, st.Size())
	return err
}
