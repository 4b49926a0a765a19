"""What do the callers of the turn-taking corpus say? Written turns, apart for tuning (TRAIN) and for reports (TEST).

One turn a line: kind > what the agent asked > what the caller says. ``|`` is a pause inside the turn: what stands
before it is spoken with the intonation its own punctuation asks for, and with that of a comma where it has none.
``{3}`` is three digits, drawn anew for each caller and read one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("number", "address", "list", "hesitation", "thought", "sentence", "question", "short")
"""``thought``: a sentence that could be over at its pause but is not; nothing in the words tells."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """One turn as written."""

    kind: str
    asked: str
    text: str


def _read(lines: str) -> tuple[Sentence, ...]:
    rows = [[part.strip() for part in line.split(">")] for line in lines.strip().splitlines()]
    return tuple(Sentence(kind, asked, text) for kind, asked, text in rows)


TRAIN = _read("""
number > What's the best phone number to reach you? > It's {3} | {3} | {4}.
number > Can I have your phone number, please? > My number is | {3} | {2} | {2}.
number > What is your account number? > My account number is {3} | {4}.
number > And the last four digits of your card? > That would be {2} | {2}.
number > Could you give me the order number? > Sure, | it's {4} | {2}.
number > What's your zip code? > {3} | {2}.
number > When were you born? > March the third, | nineteen eighty five.
number > How can I help? > You can call me back at {3} | {3} {4}.
number > What is the card number? > {4} | {4} | {4} | {4}.
address > What is your address? > I live at fourteen | Maple Street, | in Boston.
address > Where should we deliver it? > Sixty two Station Road, | Oxford.
address > Can you tell me your address? > It's apartment nine, | thirty Park Avenue, | New York.
address > How can I help? > Please send it to twelve | Green Lane | in Chester.
list > What would you like to order? > I'd like two coffees, | a sandwich, | and a bottle of water.
list > What do you need? > Bread, | milk, | eggs | and some butter.
list > Which days suit you? > Monday, | Tuesday, | or Friday.
list > What are your symptoms? > I have a headache, | a sore throat, | and a fever.
hesitation > How can I help? > I'd like to change | um, | my booking for tomorrow.
hesitation > What seems to be the problem? > Well, | the washing machine is, | uh, | leaking.
hesitation > When would you like to come? > Let me see, | Thursday at three would work.
hesitation > Which model do you have? > Hold on, | it's the blue one.
hesitation > How can I help? > I was wondering if | you have a room for tonight.
hesitation > What did you order? > It was the | the large red box.
hesitation > How can I help? > I need to talk to someone about | my electricity bill.
hesitation > Anything else? > Yes, and | could you also send me the invoice?
hesitation > Who would you like to speak to? > I want to speak with | Doctor Miller.
hesitation > How can I help? > If it rains on Sunday, | can I get my money back?
thought > How can I help? > I'd like to book a table. | For four people, please.
thought > What happened? > The car broke down. | It won't start again.
thought > Do you have a booking? > Yes. | It's under the name of Parker.
thought > How can I help? > My internet is not working. | Since yesterday evening.
thought > Is that right? > No, | it should be the twelfth.
thought > How can I help? > I called last week. | You said someone would come.
sentence > How can I help? > I'd like to cancel my subscription.
sentence > How can I help? > My parcel has not arrived yet.
sentence > What happened? > I lost my keys on the train this morning.
sentence > How can I help? > Please tell me a joke.
sentence > When would you like to come? > Next Wednesday in the afternoon would be best.
sentence > What would you like to drink? > I'll have a cup of tea with lemon.
sentence > Is there anything else? > That's all I need, thank you very much.
sentence > How was your stay? > Everything was wonderful and the food was great.
question > How can I help? > What time do you close today?
question > How can I help? > Can you tell me how much it costs?
question > Is there anything else? > Do you have it in a larger size?
question > How can I help? > Where is the nearest train station?
question > How can I help? > How long does the delivery take?
question > Anything else? > What is it made of?
short > Is that correct? > Yes.
short > Would you like a receipt? > No, thank you.
short > Shall I book it for you? > Yes, please.
short > Do you have a reservation? > Yeah, I do.
short > What is your name? > Susan Taylor.
short > How many people? > Three.
short > Which size would you like? > Medium.
short > Are you still there? > Sure.
short > What day is it? > Tuesday.
""")

TEST = _read("""
number > May I have a telephone number for you? > Yes, it's {3} | {3} | {4}.
number > Which phone number should I use? > You can use {3} | {4}.
number > What's the booking reference number? > The reference is {2} | {3} | {2}.
number > Please give me the last four digits of your social security number. > {2} | {2}.
number > Could you read me the number on the invoice? > It says {4} | {3}.
number > And your zip code? > My zip code is {2} | {3}.
number > What is your date of birth? > The ninth of July, | nineteen seventy two.
number > How may I direct your call? > I'm calling about invoice {3} | {3}.
number > Can I have your credit card number? > Sure, it's {4} | {4} | {4} | {4}.
number > What's your flight number? > I think it's flight {2} | {2}.
address > What's the delivery address? > Twenty eight | Church Street, | Cambridge.
address > Where do you live? > At one hundred and five | Lake Drive, | in Denver.
address > What address do you have on file? > It should be seventeen | Mill Road, | apartment four.
address > How can I help you today? > I've moved to forty three | Queen's Terrace | in Brighton.
list > What can I get you? > A cheeseburger, | large fries, | and a lemonade.
list > What is missing from the delivery? > The batteries, | the charger, | and the manual.
list > Which cities did you visit? > Rome, | Paris, | and Berlin.
list > Who is coming? > My brother, | his wife | and their two children.
list > What should I put on the list? > Apples, | rice, | tomatoes, | and cheese.
hesitation > How may I help you? > I'm looking for | uh, | a present for my daughter.
hesitation > What's the matter with it? > The screen is | um, | completely black.
hesitation > Which date works for you? > Give me a second, | the twentieth is fine.
hesitation > How can I help you today? > I need some information about | your opening hours.
hesitation > What did you have in mind? > Maybe something with | a balcony | and a view.
hesitation > How can I help you today? > Could you tell me whether | the museum is open on Mondays?
hesitation > Why are you calling? > Because | my card was declined.
hesitation > Where did you leave it? > I think I left it in the | in the conference room.
hesitation > What would you like to change? > I want to move my appointment from | Friday to Saturday.
hesitation > How can I help you today? > When the engineer comes tomorrow, | will he bring the parts?
hesitation > Anything else I can do? > Yeah, so | I also wanted to ask about parking.
hesitation > Who is it for? > Oh, | it's for my mother.
thought > How can I help you today? > I want to return these shoes. | They are too small.
thought > Are you travelling alone? > No. | There are two of us.
thought > What went wrong? > The heating stopped working. | I think it's the pump.
thought > How can I help you today? > I have a question | about my last payment.
thought > Did you get the message? > Yes, | but I could not open it.
thought > How can I help you today? > We're planning a trip to Scotland. | In the first week of May.
thought > What would you like to eat? > I'll take the soup. | And a green salad.
sentence > How may I help you? > I want to upgrade my phone plan.
sentence > What's the matter? > There is no hot water in my room.
sentence > What happened then? > The driver left without waiting for me.
sentence > How may I help you? > Tell me about the weather in Madrid.
sentence > When did it start? > It began about two weeks ago.
sentence > Is there anything else? > No, you have been very helpful.
sentence > What's the plan? > We would like to stay for three nights.
sentence > How may I help you? > I forgot the password for my email account.
sentence > What do you think? > That sounds like a really good idea.
question > How may I help you? > When does the next bus leave?
question > How may I help you? > Is breakfast included in the price?
question > Anything else I can do? > Could you repeat that more slowly?
question > How may I help you? > Why was I charged twice this month?
question > Is there anything else? > Who should I talk to about that?
question > How may I help you? > What kind of wine goes with fish?
question > How may I help you? > Are you open on public holidays?
short > Would you like to continue? > Yeah.
short > Is this your first visit? > No, it isn't.
short > Should I send you a text message? > Yes, that would be great.
short > Can you hear me? > Yes, I can.
short > Could you tell me your name? > Robert Mitchell.
short > How many tickets do you need? > Five.
short > What colour do you prefer? > Dark green.
short > Do you agree? > Absolutely.
short > What month? > In October.
""")
