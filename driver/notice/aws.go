// SPDX-License-Identifier: MPL-2.0

package notice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// amazon reads EC2's instance metadata, by IMDSv2 alone: a node that answers
// without a token is open to requests that others smuggle in.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
type amazon struct {
	client    *imds.Client
	rebalance bool
}

func newAWS(c Config) amazon {
	return amazon{rebalance: c.Rebalance, client: imds.New(imds.Options{
		HTTPClient: newClient(c.Address, c.Period), EnableFallback: aws.FalseTernary,
		// The next read is the next try.
		Retryer: aws.NopRetryer{}, DisableDefaultTimeout: true,
	})}
}

func (a amazon) Read(ctx context.Context) (*Notice, error) {
	data, err := a.get(ctx, "spot/instance-action")
	if err != nil {
		return nil, err
	}
	if data != nil {
		return instanceAction(data)
	}
	if !a.rebalance {
		return nil, nil
	}
	data, err = a.get(ctx, "events/recommendations/rebalance")
	if err != nil || data == nil {
		return nil, err
	}
	return rebalance(data)
}

// get returns nil where there is no such item.
func (a amazon) get(ctx context.Context, path string) ([]byte, error) {
	out, err := a.client.GetMetadata(ctx, &imds.GetMetadataInput{Path: path})
	if answer := (*smithyhttp.ResponseError)(nil); errors.As(err, &answer) && answer.HTTPStatusCode() == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s of AWS's instance metadata: %w", path, err)
	}
	defer out.Content.Close()
	data, err := io.ReadAll(out.Content)
	if err != nil {
		return nil, fmt.Errorf("read %s of AWS's instance metadata: %w", path, err)
	}
	return data, nil
}

// instanceAction reads {"action": "terminate", "time": "2017-09-18T08:22:00Z"}.
func instanceAction(data []byte) (*Notice, error) {
	var v struct {
		Action string    `json:"action"`
		Time   time.Time `json:"time"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return nil, fmt.Errorf("read spot/instance-action of AWS's instance metadata: %w", err)
	}
	switch v.Action {
	case "terminate", "stop", "hibernate":
		return &Notice{What: "AWS: spot instance-action " + v.Action, At: v.Time}, nil
	}
	return nil, fmt.Errorf("spot/instance-action of AWS's instance metadata: action %q; allowed are terminate, stop, hibernate", line(v.Action))
}

// rebalance reads {"noticeTime": "2020-10-27T08:22:00Z"}: when it was given,
// not when the instance ends.
func rebalance(data []byte) (*Notice, error) {
	var v struct {
		NoticeTime time.Time `json:"noticeTime"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return nil, fmt.Errorf("read events/recommendations/rebalance of AWS's instance metadata: %w", err)
	}
	if v.NoticeTime.IsZero() {
		return nil, errors.New("events/recommendations/rebalance of AWS's instance metadata: no noticeTime")
	}
	return &Notice{What: "AWS: rebalance recommendation"}, nil
}
