// A text of an error and an option are searched as they are pasted: the search would take
// their colons, stars, tildes and leading hyphens for operators, and find nothing. Words
// that every page has only mix up the order.
const post = Worker.prototype.postMessage
Worker.prototype.postMessage = function (message, ...others) {
  const asks = message !== null && typeof message === "object" && message.type === 2
  if (asks && typeof message.data === "string") {
    const words = message.data.replace(/[:^~*+]|(?<!\S)-+/g, " ")
    const rare = words.replace(/(?<!\S)(a|an|for|in|is|of|on|the|to|your)(?=\s)/gi, " ")
    message = { ...message, data: rare }
  }
  return post.call(this, message, ...others)
}
