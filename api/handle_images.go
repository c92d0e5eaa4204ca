package api

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"time"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

// imageList is the answer of listImages: an object, so that it can grow a page
// token.
type imageList struct {
	Items []runtime.Image `json:"items"`
}

func (c *call) listImages() error {
	items, err := c.svc.ListImages(c.ctx)
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, imageList{Items: items})
}

func (c *call) getImage() error {
	img, err := c.svc.GetImage(c.ctx, policy.ImageName(c.id))
	if err != nil {
		return err
	}
	return c.reply(http.StatusOK, img)
}

func (c *call) removeImage() error {
	if err := c.svc.RemoveImage(c.ctx, policy.ImageName(c.id)); err != nil {
		return err
	}
	return c.done()
}

// importImage takes the archive itself as the body: the daemon opens no path that
// a caller names.
func (c *call) importImage() error {
	req := runtime.ImportImageRequest{
		Name: policy.ImageName(c.query.id("name")), Select: c.query.text("select"),
		Driver: policy.ImageDriver(c.query.text("driver")),
	}
	if c.query.err != nil {
		return c.query.err
	}
	if err := c.wantPlain(archiveType); err != nil {
		return err
	}
	img, err := c.svc.ImportImage(c.ctx, req, arriving{c})
	if err != nil {
		// What is left of the body is not worth reading.
		c.w.Header().Set("Connection", "close")
		return err
	}
	c.w.Header().Set("Location", "/v1/images/"+string(img.Name))
	return c.reply(http.StatusCreated, img)
}

// wantPlain refuses a body that is not said to be of a type, without parameters and
// encodings.
func (c *call) wantPlain(want string) error {
	if media, params, err := mime.ParseMediaType(c.r.Header.Get("Content-Type")); err != nil || media != want || len(params) > 0 ||
		len(c.r.Header.Values("Content-Type")) != 1 || c.r.Header.Get("Content-Encoding") != "" {
		return badRequest("the Content-Type is not %s, plain", want)
	}
	return nil
}

const archiveType = "application/x-tar"

// arriving is a large body: each read gets its time, so that a client that stalls
// does not hold the import for ever, and a slow one may take as long as it does.
type arriving struct{ c *call }

func (a arriving) Read(b []byte) (int, error) {
	_ = http.NewResponseController(a.c.w).SetReadDeadline(time.Now().Add(a.c.srv.opt.BodyTimeout)) // a test's recorder has none
	n, err := a.c.r.Body.Read(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = badRequest("the body did not arrive in time").Because(err)
	} else if err != nil && err != io.EOF {
		err = badRequest("the body did not arrive whole").Because(err)
	}
	return n, err
}
