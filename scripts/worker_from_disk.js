// Browsers start no Worker for a page from disk. There the search runs in a hidden frame of the page instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.appendChild(frame);
      const inside = (this.inside = frame.contentWindow);
      this.ready = new Promise((done) => {
        inside.postMessage = (data) => {
          const event = new MessageEvent("message", { data });
          this.dispatchEvent(event);
          if (this.onmessage) this.onmessage(event);
        };
        inside.importScripts = (...urls) =>
          Promise.all(urls.map((one) => new Promise((loaded) => load(one, loaded))));
        const load = (one, loaded) => {
          const script = inside.document.createElement("script");
          script.src = one;
          script.onload = script.onerror = loaded;
          inside.document.body.appendChild(script);
        };
        load(url, done);
      });
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })));
    }
    terminate() {}
  };
}
